"""``--hosts``: the spec's cluster anew, its tasks laid out over the slots of hosts in order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from pydantic_core import PydanticCustomError

from tfcluster.errors import Problem, SpecError
from tfcluster.spec import address
from tfcluster.spec.cluster import JOBS, JobName
from tfcluster.spec.hosts_file import HostSlots
from tfcluster.spec.overrides import Override

NUMBERS_HOST = "127.0.0.1"
"""The host of tasks that are given as a number."""


def spread(
    value: Any, hosts: Sequence[HostSlots], *, workers: int | None = None
) -> tuple[Any, tuple[Override, ...]]:
    """The spec's `value` less what belongs to its own hosts, and what is to be put in its place.

    Chief, ps and evaluator stay as many as the spec has; the rest of the slots are workers, at
    most `workers`. Slot after slot, host after host: chief, workers, ps, evaluator. A cluster that
    is none is left for the model to refuse. Raises SpecError.
    """
    if not isinstance(value, Mapping) or not is_plain(value.get("cluster") or {}):
        return value, ()
    cluster: Mapping[str, Any] = value.get("cluster") or {}
    _refuse_settings_of_tasks(cluster, hosts[0].place)
    counts = _counts(cluster, hosts, workers)
    slots = (one for one in hosts for _ in range(one.slots))
    placed = {job: list(islice(slots, counts[job])) for job in JOBS if counts[job]}
    named = {one.host for taken in placed.values() for one in taken}
    jobs = {job: [f"{one.host}:0" for one in taken] for job, taken in placed.items()}
    own = {key: kept for key, kept in cluster.items() if key not in JOBS}
    chosen = [Override(("cluster",), {**own, **jobs}, hosts[0].place)]
    chosen += (
        Override(("cluster", job, index), f"{one.host}:0", one.place)
        for job, taken in placed.items()
        for index, one in enumerate(taken)
    )
    chosen += (
        Override(("runtime", "hosts", one.host, "ssh"), one.login, one.place)
        for one in hosts
        if one.login is not None and one.host in named
    )
    known = {*_hosts_of(cluster), *(one.host for one in hosts)}
    return without_settings_of(value, known - named), tuple(chosen)


def without_settings_of(value: Mapping[str, Any], gone: set[str]) -> Mapping[str, Any]:
    """The spec without ``runtime.hosts`` of hosts that take no task any more."""
    runtime = value.get("runtime")
    settings = runtime.get("hosts") if isinstance(runtime, Mapping) else None
    if not isinstance(runtime, Mapping) or not isinstance(settings, Mapping):
        return value
    kept = {host: said for host, said in settings.items() if host not in gone}
    return {**value, "runtime": {**runtime, "hosts": kept}}


def is_plain(cluster: Any) -> bool:
    """Whether its jobs can be counted; what is wrong otherwise, the model says better."""
    return isinstance(cluster, Mapping) and all(
        tasks is None
        or isinstance(tasks, list)
        or (isinstance(tasks, int) and not isinstance(tasks, bool) and tasks >= 0)
        for job, tasks in cluster.items()
        if not job.startswith("x-")
    )


def _counts(
    cluster: Mapping[str, Any], hosts: Sequence[HostSlots], workers: int | None
) -> dict[JobName, int]:
    total = sum(one.slots for one in hosts)
    counts = {job: _count(cluster.get(job)) for job in JOBS}
    others = sum(counts.values()) - counts["worker"]
    left = total - others
    needs_worker = counts["worker"] > 0 or not counts["chief"]
    wanted = workers if workers is not None else max(left, int(needs_worker))
    if wanted > left:
        all_jobs = {**counts, "worker": wanted}
        tasks = ", ".join(f"{number} {job}" for job, number in all_jobs.items() if number)
        message = f"{total} slot{'s' * (total > 1)} for {sum(all_jobs.values())} tasks: {tasks}"
        cure = "name more hosts, or slots: host:2, or slots=2 in the file"
        raise SpecError([Problem("--hosts", message, cure)])
    return {**counts, "worker": wanted}


def _count(tasks: Any) -> int:
    return len(tasks) if isinstance(tasks, list) else tasks or 0


def _refuse_settings_of_tasks(cluster: Mapping[str, Any], place: str) -> None:
    """They were written for a task at its place; none of the new ones is that task."""
    for job in JOBS:
        tasks = cluster.get(job)
        for index, task in enumerate(tasks if isinstance(tasks, list) else ()):
            if isinstance(task, Mapping) and {"gpus", "env"} & task.keys():
                message = f"cluster.{job}.{index} has gpus or env of its own, which would be lost"
                cure = "write them into resources and runtime.hosts, or leave --hosts out"
                raise SpecError([Problem(place, message, cure)])


def _hosts_of(cluster: Mapping[str, Any]) -> Iterator[str]:
    for job in JOBS:
        tasks = cluster.get(job)
        if isinstance(tasks, int):
            yield NUMBERS_HOST
        for task in tasks if isinstance(tasks, list) else ():
            text = task.get("address") if isinstance(task, Mapping) else task
            with contextlib.suppress(PydanticCustomError):
                yield address.parse(str(text)).host
