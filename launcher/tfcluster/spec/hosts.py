"""Hosts from the command line: ``--hosts``, ``--hostfile``, ``--include`` and ``--exclude``.

A line of a host file is ``[user@]host [slots=N]``, as in the files of mpirun, horovodrun and
DeepSpeed; a list is ``host[:N],…``, as in ``horovodrun -H``. Both accept ``host:N``. Tasks that
``--include`` and ``--exclude`` leave are renumbered from 0.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticCustomError

from tfcluster.errors import Problem, SpecError, join_first
from tfcluster.spec import JOBS, FieldPath, HostChoice, JobName, cluster, shorten
from tfcluster.spec.cluster import MAX_TASKS, host_key, iter_entries
from tfcluster.spec.fields import drop_x_keys
from tfcluster.spec.overrides import Override
from tfcluster.spec.source import read_text

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec

_FILE_SUFFIXES = frozenset({".txt", ".hosts", ".list", ".conf", ".cfg"})
"""Endings that no host name has: such a name is a file even if it does not exist."""
_NUMBERS_HOST = "127.0.0.1"
"""The host of tasks that are given as a number."""
_HOST_FORM = 'write "host", "user@host" or "host slots=2"'
_LOGIN = re.compile(r"[^\s@:,#-][^\s,:]*@(.+)")
_COMMENT = re.compile(r"(^|\s)#.*")


@dataclass(frozen=True, slots=True)
class HostSlots:
    """One host, and how many tasks it takes."""

    host: str
    """The host part of an address: IPv6 in brackets."""
    slots: int
    login: str | None
    """The destination for ssh, if a user was given."""
    place: str
    """``file:line``, or the option."""


def read_hosts(choice: HostChoice) -> tuple[HostSlots, ...]:
    """Return the hosts of ``--hosts`` or ``--hostfile``, in order.

    Raises SpecError with all problems, each with its file and line.
    """
    if choice.hosts is not None and choice.hostfile is not None:
        message = "cannot be combined with --hosts"
        raise SpecError.at("--hostfile", message, "keep one of them")
    if choice.hostfile is not None:
        return _read_file(choice.hostfile)
    assert choice.hosts is not None
    if _is_file(choice.hosts):
        return _read_file(choice.hosts)
    items = [item.strip() for item in choice.hosts.split(",") if item.strip()]
    source = f"--hosts {shorten(choice.hosts)}"
    return _collect(((f"--hosts {item}", [item]) for item in items), source)


def _read_file(name: str) -> tuple[HostSlots, ...]:
    lines = enumerate(read_text(name, "host", "check the path").split("\n"), start=1)
    words = ((f"{name}:{number}", _COMMENT.sub("", line).split()) for number, line in lines)
    return _collect(((place, line) for place, line in words if line), name)


def spread(
    value: Any, hosts: Sequence[HostSlots], *, workers: int | None = None
) -> tuple[Any, tuple[Override, ...]]:
    """Return the spec's `value` without its own hosts, and the overrides that place its tasks.

    The number of tasks of other jobs stays that of the spec; the other slots are workers, at most
    `workers`. Slots are filled host by host, in the order of `JOBS`.
    An invalid cluster is left unchanged: the model reports it. Raises SpecError.
    """
    if not isinstance(value, Mapping) or not is_countable(value.get("cluster") or {}):
        return value, ()
    old: Mapping[str, Any] = value.get("cluster") or {}
    _refuse_task_settings(old, hosts[0].place)
    counts = _count_tasks(old, hosts, workers)
    slots = (host for host in hosts for _ in range(host.slots))
    placed = {job: list(islice(slots, counts[job])) for job in JOBS if counts[job]}
    used = {slot.host for taken in placed.values() for slot in taken}
    jobs = {job: [f"{slot.host}:0" for slot in taken] for job, taken in placed.items()}
    x_keys = {key: kept for key, kept in old.items() if key not in JOBS}
    overrides = [Override(("cluster",), {**x_keys, **jobs}, hosts[0].place)]
    overrides += (
        Override(("cluster", job, index), f"{slot.host}:0", slot.place)
        for job, taken in placed.items()
        for index, slot in enumerate(taken)
    )
    overrides += (
        Override(("runtime", "hosts", host.host, "ssh"), host.login, host.place)
        for host in hosts
        if host.login is not None and host.host in used
    )
    known = {*_hosts_of(old), *(host.host for host in hosts)}
    return drop_host_settings(value, known - used), tuple(overrides)


def drop_host_settings(value: Mapping[str, Any], unused: set[str]) -> Mapping[str, Any]:
    """Return the spec without the ``runtime.hosts`` entries of `unused` hosts."""
    runtime = value.get("runtime")
    settings = runtime.get("hosts") if isinstance(runtime, Mapping) else None
    if not isinstance(runtime, Mapping) or not isinstance(settings, Mapping):
        return value
    kept = {host: entry for host, entry in settings.items() if host not in unused}
    return {**value, "runtime": {**runtime, "hosts": kept}}


def _is_file(text: str) -> bool:
    if "," in text:
        return False
    return "/" in text or Path(text).suffix in _FILE_SUFFIXES or os.path.isfile(text)


def _collect(items: Iterator[tuple[str, list[str]]], source: str) -> tuple[HostSlots, ...]:
    """Return the hosts of (place, words) items; `source` is named in problems of the whole."""
    slots_by_host: dict[str, HostSlots] = {}
    problems: list[Problem] = []
    for place, words in items:
        try:
            host = _parse_host(words, place)
        except SpecError as error:
            problems += error.problems
            continue
        first = slots_by_host.setdefault(cluster.host_key(host.host), host)
        if first is not host:
            fix = "keep one; for several tasks on a host write slots=2, or host:2"
            problems.append(Problem(place, f"{host.host} is already listed: {first.place}", fix))
    if not (slots_by_host or problems):
        problems.append(Problem(source, "no host is listed", _HOST_FORM))
    if sum(host.slots for host in slots_by_host.values()) > MAX_TASKS:
        problems.append(Problem(source, f"more than {MAX_TASKS} slots", "use fewer slots"))
    if problems:
        raise SpecError(problems)
    return tuple(slots_by_host.values())


def _parse_host(words: Sequence[str], place: str) -> HostSlots:
    name, slots = words[0], None
    if "://" in name:
        raise SpecError.at(place, f"{shorten(name)} has a scheme", _HOST_FORM)
    if login := _LOGIN.fullmatch(name):
        name = login[1]
    elif "@" in name:
        raise SpecError.at(place, f"{shorten(name)} has no user before the @", _HOST_FORM)
    if match := re.fullmatch(r"([^\[\]:]*|\[[^\]]*\]):([^:]*)", name):
        name, slots = match[1], _parse_slots(match[2], place)
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if key != "slots" or not equals:
            raise SpecError.at(place, f"{shorten(word)} is not a known setting", _HOST_FORM)
        if slots is not None:
            raise SpecError.at(place, "the slots are written twice", "keep one of them")
        slots = _parse_slots(value, place)
    try:
        cluster.check_host(name, shorten(name), form=_HOST_FORM)
    except PydanticCustomError as error:
        fix = (error.context or {})["fix"]
        raise SpecError.at(place, f"{shorten(name)} is not a host name", fix) from None
    user = words[0].removesuffix(login[1]) if login else ""
    return HostSlots(name, slots or 1, user + name.strip("[]") if user else None, place)


def _parse_slots(text: str, place: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= MAX_TASKS:
        fix = f"write 1 to {MAX_TASKS}, the number of tasks; the host chooses the ports"
        raise SpecError.at(place, f"{shorten(text)} is not a number of slots", fix)
    return int(text)


def is_countable(tasks_of_jobs: Any) -> bool:
    """Return whether the tasks of each job can be counted; the model reports other values."""
    return isinstance(tasks_of_jobs, Mapping) and all(
        tasks is None
        or isinstance(tasks, list)
        or (isinstance(tasks, int) and not isinstance(tasks, bool) and tasks >= 0)
        for job, tasks in tasks_of_jobs.items()
        if not job.startswith("x-")
    )


def _count_tasks(
    old: Mapping[str, Any], hosts: Sequence[HostSlots], workers: int | None
) -> dict[JobName, int]:
    total = sum(host.slots for host in hosts)
    counts = count_tasks_of(old)
    free = total - (sum(counts.values()) - counts["worker"])
    needs_worker = counts["worker"] > 0 or not counts["chief"]
    requested = workers if workers is not None else max(free, int(needs_worker))
    counts["worker"] = requested
    if requested > free:
        tasks = ", ".join(f"{number} {job}" for job, number in counts.items() if number)
        message = f"{total} slot{'s' * (total > 1)} for {sum(counts.values())} tasks: {tasks}"
        fix = "add hosts or slots: host:2, or slots=2 in the file"
        raise SpecError.at("--hosts", message, fix)
    return counts


def count_tasks_of(cluster: Mapping[str, Any]) -> dict[JobName, int]:
    """Return the number of tasks of each job in a cluster that `is_countable`."""
    written = {job: cluster.get(job) for job in JOBS}
    return {job: len(n) if isinstance(n, list) else n or 0 for job, n in written.items()}


def _refuse_task_settings(old: Mapping[str, Any], place: str) -> None:
    """Raise SpecError if a task has settings: they belong to its address, which is replaced."""
    for job in JOBS:
        tasks = old.get(job)
        for index, task in enumerate(tasks if isinstance(tasks, list) else ()):
            if isinstance(task, Mapping) and {"gpus", "env"} & task.keys():
                message = f"cluster.{job}.{index} has its own gpus or env, which would be lost"
                fix = "move them to resources and runtime.hosts, or leave out --hosts"
                raise SpecError.at(place, message, fix)


def _hosts_of(old: Mapping[str, Any]) -> Iterator[str]:
    for job in JOBS:
        tasks = old.get(job)
        if isinstance(tasks, int):
            yield _NUMBERS_HOST
        for task in tasks if isinstance(tasks, list) else ():
            text = task.get("address") if isinstance(task, Mapping) else task
            with contextlib.suppress(PydanticCustomError):
                yield cluster.parse(str(text)).host


_TASK = re.compile(rf"({'|'.join(JOBS)})(?:[:-](\d{{1,5}}))?")
_REQUIRED_JOBS = ("chief", "worker", "ps")


@dataclass(frozen=True, slots=True)
class _Task:
    job: str
    index: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected tasks of a cluster."""

    value: Any
    """The spec with the selected tasks."""
    override: Override
    """The new cluster and the options that chose it."""
    moved: Mapping[tuple[str, int], int]
    """(job, old index) → new index."""

    def new_path(self, path: FieldPath) -> FieldPath | None:
        """Return the new path of the spec's `path`, or None if its task was left out."""
        match path:
            case ("cluster", str(job), int(index), *rest):
                new = self.moved.get((job, index))
                return None if new is None else ("cluster", job, new, *rest)
        return path


def select(value: Mapping[str, Any], spec: ClusterSpec, choice: HostChoice) -> Selection:
    """Return the selection of the tasks that `choice` includes and does not exclude.

    `value` is the JSON of `spec`. An item of `choice` is a host, or a host and one of its tasks:
    ``gpu1``, ``gpu1:worker:1``, ``gpu1:0`` (the host's first task, as DeepSpeed counts; or a
    port). Raises SpecError for an item that matches no task, and if the spec has chief, worker or
    ps tasks and none of that job would remain.
    """
    tasks = [_Task(*task, entry.host, entry.port) for task, entry in iter_entries(spec.cluster)]
    problems: list[Problem] = []
    included = {*tasks}
    if choice.include:
        included = _find_tasks("--include", choice.include, tasks, problems)
    excluded = _find_tasks("--exclude", choice.exclude, tasks, problems)
    kept = [task for task in tasks if task in included - excluded]
    place = " ".join(
        f"{option} {','.join(items)}"
        for option, items in (("--include", choice.include), ("--exclude", choice.exclude))
        if items
    )
    if not problems:
        problems += _check_required_jobs(tasks, kept, place)
    if problems:
        raise SpecError(problems)
    return _make_selection(value, tasks, kept, place)


def _make_selection(
    value: Mapping[str, Any], tasks: Sequence[_Task], kept: Sequence[_Task], place: str
) -> Selection:
    cluster = dict(value["cluster"])
    moved: dict[tuple[str, int], int] = {}
    for job in {task.job for task in tasks}:
        indexes = [task.index for task in kept if task.job == job]
        moved |= {(job, old): new for new, old in enumerate(indexes)}
        cluster[job] = [cluster[job][old] for old in indexes] or None
    unused = {task.host for task in tasks} - {task.host for task in kept}
    changed = {**_renumber_steps(drop_host_settings(value, unused), moved), "cluster": cluster}
    return Selection(changed, Override(("cluster",), cluster, place), moved)


def _renumber_steps(
    value: Mapping[str, Any], moved: Mapping[tuple[str, int], int]
) -> Mapping[str, Any]:
    """Return the spec with ``job.per_task`` renumbered, and without tasks that are left out."""
    job = value.get("job")
    per_task = job.get("per_task") if isinstance(job, Mapping) else None
    if not isinstance(job, Mapping) or not isinstance(per_task, Mapping):
        return value
    steps = {}
    for key, step in drop_x_keys(per_task).items():
        name, colon, index = key.partition(":")
        if not colon and any(job_name == name for job_name, _ in moved):
            steps[key] = step
        elif colon and (new := moved.get((name, int(index)))) is not None:
            steps[f"{name}:{new}"] = step
    return {**value, "job": {**job, "per_task": steps}}


def _find_tasks(
    option: str, texts: Sequence[str], tasks: Sequence[_Task], problems: list[Problem]
) -> set[_Task]:
    named: set[_Task] = set()
    for item in _split_items(texts):
        try:
            named |= _match_item(item, tasks, place=f"{option} {item}")
        except SpecError as error:
            problems += error.problems
    return named


def _split_items(texts: Sequence[str]) -> Iterator[str]:
    """Split at commas, or at DeepSpeed's ``@`` with commas between the tasks of a host."""
    for text in texts:
        host = ""
        for item in filter(None, (part.strip() for part in re.split("[,@]", text))):
            if item.isdecimal() and host:
                yield f"{host}:{item}"
            else:
                host = item.rpartition(":")[0]
                yield item


def _match_item(item: str, tasks: Sequence[_Task], *, place: str) -> set[_Task]:
    """Return the tasks that `item` names; raises SpecError."""
    if all_of_host := {task for task in tasks if host_key(task.host) == host_key(item)}:
        return all_of_host
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*):(.*)", item)
    host, name = (match[1], match[2]) if match else (item, "")
    on_host = [task for task in tasks if host_key(task.host) == host_key(host)]
    if not on_host:
        message = f"no task is on the host {shorten(host)}"
        raise SpecError.at(place, message, _suggest_hosts(tasks))
    matching = {*_match_on_host(name, on_host)}
    if not matching:
        fix = f"its tasks are {join_first(on_host)}"
        raise SpecError.at(place, f"{host} has no task {shorten(name)}", fix)
    return matching


def _match_on_host(name: str, on_host: Sequence[_Task]) -> Iterator[_Task]:
    if match := _TASK.fullmatch(name):
        number = None if match[2] is None else int(match[2])
        yield from (t for t in on_host if t.job == match[1] and number in (None, t.index))
    elif re.fullmatch(r"[0-9]{1,5}", name):
        number = int(name)
        yield from on_host[number : number + 1] or (t for t in on_host if t.port == number > 0)


def _suggest_hosts(tasks: Sequence[_Task]) -> str:
    if not tasks:
        return "the cluster lists no addresses: add them, or name hosts with --hosts"
    return f"use one of {join_first(dict.fromkeys(task.host for task in tasks))}"


def _check_required_jobs(
    tasks: Sequence[_Task], kept: Sequence[_Task], place: str
) -> Iterator[Problem]:
    for job in _REQUIRED_JOBS:
        of_job = [task for task in tasks if task.job == job]
        if not of_job or any(task.job == job for task in kept):
            continue
        hosts = ", ".join(dict.fromkeys(task.host for task in of_job[:8]))
        message = f"no {job} would remain; the spec has {len(of_job)}, on {hosts}"
        other = "" if job == "worker" else f', or use a spec without "{job}"'
        yield Problem(place, message, f"keep one of them{other}")
