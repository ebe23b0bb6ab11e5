"""The options ``--include`` and ``--exclude``: some of a cluster's tasks, renumbered from 0."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfcluster.errors import Problem, SpecError, join_first
from tfcluster.spec import HostChoice, Path, shorten
from tfcluster.spec.cluster import host_key, iter_entries
from tfcluster.spec.fields import drop_x_keys
from tfcluster.spec.hosts import drop_host_settings
from tfcluster.spec.overrides import Override

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec

_TASK = re.compile(r"(chief|worker|ps|evaluator)(?:[:-](\d{1,5}))?")
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

    def new_path(self, path: Path) -> Path | None:
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
    found: set[_Task] = set()
    for item in _split_items(texts):
        try:
            found |= _match_item(item, tasks, place=f"{option} {item}")
        except SpecError as error:
            problems += error.problems
    return found


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
        raise SpecError([Problem(place, message, _suggest_hosts(tasks))])
    found = {*_match_on_host(name, on_host)}
    if not found:
        fix = f"its tasks are {join_first(on_host)}"
        raise SpecError([Problem(place, f"{host} has no task {shorten(name)}", fix)])
    return found


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
