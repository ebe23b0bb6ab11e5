"""Plans a spec for the machine that is told to take part in it, or to start one task by hand."""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tfcluster.plan import joined
from tfcluster.plan.cluster import hosts_of, seats
from tfcluster.plan.placement import is_here
from tfcluster.plan.plan import TaskId
from tfcluster.run.planning import Planned, plan_spec
from tfcluster.run.surroundings import own_addresses

if TYPE_CHECKING:
    from tfcluster.spec.load import LoadedSpec

_BACKEND: Mapping[str, tuple[str, Any]] = {"join": ("runtime.backend", "auto")}
"""Whatever reaches the other machines for `up`: here each starts its own."""


def plan_join(
    source: str | None,
    *,
    names: Sequence[str] = (),
    sets: Sequence[str] = (),
    options: Mapping[str, tuple[str, Any]] | None = None,
    python: str | None = None,
    args: Sequence[str] = (),
) -> Planned:
    """The plan of this machine's tasks, or of those called `names` (``worker:1``).

    Raises UsageError (exit 2) for an unknown task and a port that is not fixed, SpecError,
    SurroundingsError (exit 3) where no task is this machine's.
    """
    loaded, tasks = _load(source, names, sets, {**_BACKEND, **(options or {})})
    planned = _plan(loaded, tasks, python, args)
    return replace(planned, plan=joined.part(planned.plan, tasks))


def plan_by_hand(
    source: str, name: str, *, sets: Sequence[str] = (), python: str | None = None
) -> tuple[Planned, TaskId]:
    """The plan of the whole cluster as the machine sees it that starts the task `name` itself."""
    loaded, tasks = _load(source, [name], sets, _BACKEND)
    return _plan(loaded, tasks, python, ()), tasks[0]


def _load(
    source: str | None,
    names: Sequence[str],
    sets: Sequence[str],
    options: Mapping[str, tuple[str, Any]],
) -> tuple[LoadedSpec, tuple[TaskId, ...]]:
    from tfcluster.spec.load import load_file  # pydantic: only where a spec is read

    loaded = load_file(source, sets=sets, options=options)
    own = own_addresses()
    listed = seats(loaded.spec, own)
    ids = [seat.id for seat in listed]
    tasks = tuple(dict.fromkeys(joined.named(ids, name) for name in names))
    return loaded, tasks or joined.mine(listed, own | _own_names(hosts_of(listed), own))


def _own_names(hosts: Sequence[str], own: Collection[str]) -> frozenset[str]:
    """Those of `hosts` that a look-up leads from to one of the `own` addresses."""
    with ThreadPoolExecutor(min(32, len(hosts) or 1)) as looks:
        found = looks.map(_addresses, hosts)
        return frozenset(
            host
            for host, there in zip(hosts, found, strict=True)
            if any(is_here(address, own) for address in there)
        )


def _addresses(host: str) -> list[str]:
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(host.strip("[]"), None)]
    except OSError:
        return []


def _plan(
    loaded: LoadedSpec, tasks: Sequence[TaskId], python: str | None, args: Sequence[str]
) -> Planned:
    """With the hosts of `tasks` taken for names of this machine."""
    listed = seats(loaded.spec, ())
    return plan_spec(
        loaded,
        python=python,
        args=args,
        here=frozenset(seat.host.strip("[]") for seat in listed if seat.id in tasks),
    )
