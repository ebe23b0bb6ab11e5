"""Hosts from the command line: parsing of ``--hosts`` and ``--hostfile``, and their use in a spec.

A line of a host file is ``[user@]host [slots=N]``, as in the files of mpirun, horovodrun and
DeepSpeed; a list is ``host[:N],…``, as in ``horovodrun -H``. Both accept ``host:N``.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic_core import PydanticCustomError

from tfcluster.agent.error_text import reason_of
from tfcluster.errors import Problem, SpecError
from tfcluster.spec.cluster import JOBS, MOST_TASKS, JobName
from tfcluster.spec.cluster import parse as parse_address
from tfcluster.spec.fields import shorten
from tfcluster.spec.host_choice import HostChoice
from tfcluster.spec.jsonc import Lines
from tfcluster.spec.overrides import Override

_MOST_BYTES = 1024 * 1024
_FILES = frozenset({".txt", ".hosts", ".list", ".conf", ".cfg"})
"""Endings that a host's name does not have: such a name that is no file is a mistyped one."""
_FORM = 'write "host", "user@host" or "host slots=2"'
_LOGIN = re.compile(r"[^\s@:,#-][^\s,:]*@(.+)")


@dataclass(frozen=True, slots=True)
class HostSlots:
    """One host, and how many tasks it takes."""

    host: str
    """As in an address: IPv6 in brackets."""
    slots: int
    login: str | None
    """What ssh is given, where a user was named."""
    place: str
    """``file:line``, or the option."""


class _Wrong(ValueError):
    """One thing that is wrong with a host's line."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message, self.fix = message, fix


def read_hosts(choice: HostChoice) -> tuple[HostSlots, ...]:
    """The hosts of ``--hosts`` or ``--hostfile``, in order; empty where neither was given.

    Raises SpecError with all problems, each with its file and line.
    """
    if choice.hosts is not None and choice.hostfile is not None:
        raise SpecError(
            [Problem("--hostfile", "--hosts says where the tasks run, too", "keep one")]
        )
    if choice.hostfile is not None:
        return read_file(choice.hostfile)
    if choice.hosts is None:
        return ()
    if _is_a_file(choice.hosts):
        return read_file(choice.hosts)
    return read_list(choice.hosts)


def _is_a_file(text: str) -> bool:
    if "," in text:
        return False
    return "/" in text or Path(text).suffix in _FILES or os.path.isfile(text)


def read_list(text: str) -> tuple[HostSlots, ...]:
    """``gpu1,anna@gpu2:2``; raises SpecError."""
    items = (
        (f"--hosts {item.strip()}", [item.strip()]) for item in text.split(",") if item.strip()
    )
    return _collected(items, f"--hosts {shorten(text)}")


def read_file(name: str) -> tuple[HostSlots, ...]:
    """One host a line; what follows a ``#`` is a comment. Raises SpecError."""
    lines = enumerate(_text_of(name).split("\n"), start=1)
    words = ((f"{name}:{number}", _words(line)) for number, line in lines)
    return _collected(((place, said) for place, said in words if said), name)


def _words(line: str) -> list[str]:
    return re.sub(r"(^|\s)#.*", "", line).split()


def _text_of(name: str) -> str:
    try:
        with open(os.path.expanduser(name), "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = reason_of(error)
        raise SpecError([Problem(name, f"cannot be read: {reason}", "check the path")]) from None
    if len(data) > _MOST_BYTES:
        raise SpecError([Problem(name, "larger than 1 MiB", "is this a file of hosts?")])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, _ = Lines(data[: error.start].decode("utf-8", "replace")).place(error.start)
        problem = Problem(f"{name}:{line}", "not UTF-8", "save the file as UTF-8")
        raise SpecError([problem]) from None


def _collected(items: Iterator[tuple[str, list[str]]], whole: str) -> tuple[HostSlots, ...]:
    found: dict[tuple[str, int], HostSlots] = {}
    problems = []
    for place, words in items:
        try:
            one = _host(words, place)
        except _Wrong as wrong:
            problems.append(Problem(place, wrong.message, wrong.fix))
            continue
        before = found.setdefault(parse_address(f"{one.host}:0").key, one)
        if before is not one:
            fix = "keep one; a host that takes several tasks: slots=2, or host:2"
            problems.append(Problem(place, f"{one.host} is named before: {before.place}", fix))
    if not (found or problems):
        problems.append(Problem(whole, "no host is named", _FORM))
    if sum(one.slots for one in found.values()) > MOST_TASKS:
        problems.append(Problem(whole, f"more than {MOST_TASKS} slots", "take fewer"))
    if problems:
        raise SpecError(problems)
    return tuple(found.values())


def _host(words: Sequence[str], place: str) -> HostSlots:
    name, slots = words[0], None
    if "://" in name:
        raise _Wrong(f"{shorten(name)} has a scheme", _FORM)
    if login := _LOGIN.fullmatch(name):
        name = login[1]
    elif "@" in name:
        raise _Wrong(f"{shorten(name)} has no user before the @", _FORM)
    if match := re.fullmatch(r"([^\[\]:]*|\[[^\]]*\]):([^:]*)", name):
        name, slots = match[1], _number(match[2])
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if key != "slots" or not equals:
            raise _Wrong(f"{shorten(word)} is not known here", _FORM)
        if slots is not None:
            raise _Wrong("the slots are written twice", "keep one")
        slots = _number(value)
    try:
        host = parse_address(f"{name}:0").host
    except PydanticCustomError as error:
        raise _Wrong(f"{shorten(name)} is not the name of a host", _fix(name, error)) from None
    user = words[0].removesuffix(login[1]) if login else ""
    return HostSlots(host, slots or 1, user + host.strip("[]") if user else None, place)


def _fix(name: str, error: PydanticCustomError) -> str:
    said = str((error.context or {}).get("cure", ""))
    if name.count(":") > 1 and "[" not in name:
        return f'write IPv6 addresses in brackets: "[{name}]"'
    return said if "numbers" in said or "reach" in said else _FORM


def _number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= MOST_TASKS:
        fix = f"write 1 to {MOST_TASKS}: how many tasks the host takes; ports are chosen there"
        raise _Wrong(f"{shorten(text)} is no number of slots", fix)
    return int(text)


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
        fix = "name more hosts, or slots: host:2, or slots=2 in the file"
        raise SpecError([Problem("--hosts", message, fix)])
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
                fix = "write them into resources and runtime.hosts, or leave --hosts out"
                raise SpecError([Problem(place, message, fix)])


def _hosts_of(cluster: Mapping[str, Any]) -> Iterator[str]:
    for job in JOBS:
        tasks = cluster.get(job)
        if isinstance(tasks, int):
            yield NUMBERS_HOST
        for task in tasks if isinstance(tasks, list) else ():
            text = task.get("address") if isinstance(task, Mapping) else task
            with contextlib.suppress(PydanticCustomError):
                yield parse_address(str(text)).host
