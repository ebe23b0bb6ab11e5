"""The hosts or the cluster that another launcher gives, and a spec without addresses on them.

`discovery.launchers` reads them from the environment.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfcluster import kinds
from tfcluster.errors import SpecError, join_first
from tfcluster.kinds import AUTO
from tfcluster.spec import COMPANIONS, JOBS, JobName
from tfcluster.spec.hosts import count_tasks_of, drop_host_settings, is_countable
from tfcluster.spec.overrides import Override

FIRST_PORT = 2222
"""The port of the first task on each host, where all must know it and the launcher gives none."""
_NUMBERS_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Allocation:
    """The hosts or the cluster of the launcher around this process."""

    variable: str
    """The variable that gives them, for messages."""
    launcher: str = ""
    """The name of the launcher or scheduler."""
    hosts: tuple[str, ...] = ()
    """Each once, in the launcher's order; IPv6 in brackets."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """The processes for which a host has room, where the launcher says so."""
    cluster: Mapping[str, Sequence[str]] | None = None
    """The addresses of each job, where the launcher has roles."""
    task: str | None = None
    """The task of this process (``worker:1``), where the launcher has roles."""
    host: str | None = None
    """This machine, one of `hosts`, where the launcher says so."""
    processes: int = 0
    """The number that the launcher has started, where it numbers them."""
    joins: bool = False
    """True if every host starts its own tasks (`tfcluster join`), on ports that all must know."""

    @property
    def note(self) -> str:
        """Say in a plan where its addresses come from."""
        if self.cluster is not None:
            return f"the cluster is that of {self.variable}"
        source = f"{self.launcher} ({self.variable})"
        return f"the tasks run on the hosts of {source}: {join_first(self.hosts)}"


def takes_allocation(value: Any) -> bool:
    """Return whether a spec's `value` leaves it to the launcher where its tasks run.

    One with addresses, with another backend or with a simulated network says so itself; an invalid
    one is reported by the model.
    """
    if not isinstance(value, Mapping) or not is_countable(cluster := value.get("cluster") or {}):
        return False
    runtime = value.get("runtime") or {}
    if not isinstance(runtime, Mapping) or runtime.get("backend") not in (None, AUTO, "ssh"):
        return False
    has_addresses = any(isinstance(cluster.get(job), list) for job in JOBS)
    return not (has_addresses or isinstance(runtime.get("network"), Mapping))


def place(value: Mapping[str, Any], given: Allocation) -> tuple[Any, tuple[Override, ...]]:
    """Return the spec's `value` and the overrides that put its tasks where `given` says.

    Roles of the launcher must be those of the spec. Its hosts share the spec's tasks of each job
    evenly, and `COMPANIONS` are on the first; with a process for each task, the slots of the hosts
    are filled in order. A spec without `cluster` gets the launcher's roles, or a worker for each
    process or host. Raises SpecError.
    """
    written = value.get("cluster") or {}
    counts = count_tasks_of(written)
    if given.cluster is None:
        if not any(counts.values()):
            counts["worker"] = max(len(given.hosts), given.processes)
        jobs = _share_out(counts, given, _first_port(value) if given.joins else None)
    else:
        jobs = {job: [*addresses] for job, addresses in given.cluster.items()}
        if any(counts.values()):
            _require_same(counts, jobs, given)
    kept = {key: entry for key, entry in written.items() if key not in JOBS}
    override = Override(("cluster",), {**kept, **jobs}, given.variable)
    return drop_host_settings(value, {_NUMBERS_HOST}), (override,)


def _share_out(
    counts: Mapping[JobName, int], given: Allocation, first_port: int | None
) -> dict[str, list[str]]:
    """Return the addresses of each job, with port 0 where `first_port` is None."""
    has_ranks = given.processes > len(given.hosts)
    sharing = sum(number for job, number in counts.items() if has_ranks or job not in COMPANIONS)
    if given.joins and sharing < len(given.hosts):
        message = f"the tasks of the spec are {sharing}, fewer than the {len(given.hosts)} hosts"
        fix = f"set cluster.worker to {len(given.hosts)} or more, or use fewer hosts"
        raise SpecError.at(given.variable, message, fix)
    slots = [given.slots.get(host, 0) for host in given.hosts]
    if has_ranks and sum(slots) >= sharing:
        before = itertools.accumulate(slots, initial=0)
        rooms = [
            max(0, min(number, sharing - filled))
            for number, filled in zip(slots, before, strict=False)
        ]
    else:
        rooms = kinds.share_evenly(sharing, len(given.hosts))
    riding = {} if has_ranks else {job: [0] * counts[job] for job in COMPANIONS}
    dealt = kinds.deal({job: counts[job] for job in JOBS if job not in riding}, rooms) | riding
    placed = Counter[str]()
    jobs: dict[str, list[str]] = {}
    for job in JOBS:
        for host in [given.hosts[number] for number in dealt[job]]:
            port = 0 if first_port is None else first_port + placed[host]
            placed[host] += 1
            jobs.setdefault(job, []).append(f"{host}:{port}")
    return jobs


def _require_same(
    counts: Mapping[JobName, int], jobs: Mapping[str, Sequence[str]], given: Allocation
) -> None:
    """Raise SpecError if the launcher has started other tasks than those of the spec.

    TF_CONFIG has an evaluator only in the evaluator itself.
    """
    wanted: dict[str, int] = {job: number for job, number in counts.items() if number}
    started = {job: len(addresses) for job, addresses in jobs.items()}
    if {**wanted, "evaluator": 0} == {**started, "evaluator": 0}:
        return
    has, wants = (
        ", ".join(f"{number} {job}" for job, number in of_job.items())
        for of_job in (started, wanted)
    )
    message = f"the spec has the tasks {wants}, and the launcher has started {has}"
    fix = "leave cluster out of the spec to take the launcher's, or make both equal"
    raise SpecError.at(given.variable, message, fix)


def _first_port(value: Mapping[str, Any]) -> int:
    """Return the first of ``runtime.ports``, or the usual one."""
    ports = (value.get("runtime") or {}).get("ports")
    first = re.match(r"\d{1,5}(?=-)", ports, re.ASCII) if isinstance(ports, str) else None
    return int(first[0]) if first else FIRST_PORT
