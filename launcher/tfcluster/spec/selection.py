"""``--include`` and ``--exclude``: a part of the spec's cluster, with its tasks counted anew."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfcluster.errors import Problem, SpecError
from tfcluster.spec.cluster import JOBS, Address
from tfcluster.spec.fields import Path, drop_x_keys, shorten
from tfcluster.spec.host_choice import HostChoice
from tfcluster.spec.hosts import without_settings_of
from tfcluster.spec.overrides import Override

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec

_TASK = re.compile(r"(chief|worker|ps|evaluator)(?:[:-](\d{1,5}))?")
_MUST_STAY = ("chief", "worker", "ps")


@dataclass(frozen=True, slots=True)
class _Task:
    job: str
    index: int
    host: str
    port: int

    @property
    def key(self) -> str:
        return _key(self.host)

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"


@dataclass(frozen=True, slots=True)
class Selection:
    """What is left of a cluster."""

    value: Any
    """The spec, with the tasks that stay."""
    override: Override
    """Where the new cluster comes from."""
    moved: Mapping[tuple[str, int], int]
    """(job, index) in the spec → its index now."""

    def path_now(self, path: Path) -> Path | None:
        """Where `path` of the spec is now; None where its task has gone."""
        match path:
            case ("cluster", str(job), int(index), *rest):
                new = self.moved.get((job, index))
                return None if new is None else ("cluster", job, new, *rest)
        return path


def select(value: Mapping[str, Any], spec: ClusterSpec, choice: HostChoice) -> Selection:
    """Keep the tasks that `choice` includes, less those that it excludes.

    `value` is what `spec` was made from. An item is a host, or a host and one of its tasks:
    ``gpu1``, ``gpu1:worker:1``, ``gpu1:0`` (its first, as DeepSpeed counts them; or a port).
    Raises SpecError for one that names nothing, and where no chief, worker or ps would be left
    of those that the spec has.
    """
    tasks = tuple(_tasks(spec))
    problems: list[Problem] = []
    included = _named("--include", choice.include, tasks, problems) if choice.include else {*tasks}
    excluded = _named("--exclude", choice.exclude, tasks, problems)
    kept = [task for task in tasks if task in included - excluded]
    place = " ".join(
        f"{option} {','.join(items)}"
        for option, items in (("--include", choice.include), ("--exclude", choice.exclude))
        if items
    )
    if not problems:
        problems += _lost(tasks, kept, place)
    if problems:
        raise SpecError(problems)
    return _selection(value, tasks, kept, place)


def _selection(
    value: Mapping[str, Any], tasks: Sequence[_Task], kept: Sequence[_Task], place: str
) -> Selection:
    cluster = dict(value["cluster"])
    moved: dict[tuple[str, int], int] = {}
    for job in {task.job for task in tasks}:
        stay = [task.index for task in kept if task.job == job]
        moved |= {(job, old): new for new, old in enumerate(stay)}
        cluster[job] = [cluster[job][old] for old in stay] or None
    gone = {task.host for task in tasks} - {task.host for task in kept}
    changed = {**_with_own_steps(without_settings_of(value, gone), moved), "cluster": cluster}
    return Selection(changed, Override(("cluster",), cluster, place), moved)


def _with_own_steps(
    value: Mapping[str, Any], moved: Mapping[tuple[str, int], int]
) -> Mapping[str, Any]:
    """``job.per_task`` by the new numbers, without what is left out."""
    job = value.get("job")
    own = job.get("per_task") if isinstance(job, Mapping) else None
    if not isinstance(job, Mapping) or not isinstance(own, Mapping):
        return value
    steps = {}
    for key, step in drop_x_keys(own).items():
        name, colon, index = key.partition(":")
        if not colon and any(job_name == name for job_name, _ in moved):
            steps[key] = step
        elif colon and (new := moved.get((name, int(index)))) is not None:
            steps[f"{name}:{new}"] = step
    return {**value, "job": {**job, "per_task": steps}}


def _tasks(spec: ClusterSpec) -> Iterator[_Task]:
    for job in JOBS:
        tasks = spec.cluster.get(job, ())
        for index, task in enumerate(() if isinstance(tasks, int) else tasks):
            yield _Task(job, index, task.host, task.port)


def _named(
    option: str, texts: Sequence[str], tasks: Sequence[_Task], problems: list[Problem]
) -> set[_Task]:
    found: set[_Task] = set()
    for item in _items(texts):
        try:
            found |= _matching(item, tasks)
        except LookupError as error:
            problems.append(Problem(f"{option} {item}", *error.args))
    return found


def _items(texts: Sequence[str]) -> Iterator[str]:
    """Commas between items, or DeepSpeed's ``@`` with commas between a host's tasks."""
    for text in texts:
        host = ""
        for item in filter(None, (part.strip() for part in re.split("[,@]", text))):
            if item.isdecimal() and host:
                yield f"{host}:{item}"
            else:
                host = item.rpartition(":")[0]
                yield item


def _matching(item: str, tasks: Sequence[_Task]) -> set[_Task]:
    """Raises LookupError with a message and its cure."""
    if whole := {task for task in tasks if task.key == _key(item)}:
        return whole
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*):(.*)", item)
    host, rest = (match[1], match[2]) if match else (item, "")
    own = [task for task in tasks if task.key == _key(host)]
    if not own:
        raise LookupError(f"no task is on the host {shorten(host)}", _hosts(tasks))
    wanted = {*_of_host(rest, own)}
    if not wanted:
        its = ", ".join(map(str, own[:8])) + (", …" if len(own) > 8 else "")
        raise LookupError(f"{host} has no task {shorten(rest)}", f"its tasks are {its}")
    return wanted


def _of_host(rest: str, own: Sequence[_Task]) -> Iterator[_Task]:
    if match := _TASK.fullmatch(rest):
        number = None if match[2] is None else int(match[2])
        yield from (t for t in own if t.job == match[1] and number in (None, t.index))
    elif re.fullmatch(r"[0-9]{1,5}", rest):
        number = int(rest)
        yield from own[number : number + 1] or (t for t in own if t.port == number > 0)


def _hosts(tasks: Sequence[_Task]) -> str:
    if not tasks:
        return "the cluster gives numbers: list addresses, or name hosts with --hosts"
    names = list(dict.fromkeys(task.host for task in tasks))
    return f"write one of {', '.join(names[:8])}" + (", …" if len(names) > 8 else "")


def _lost(tasks: Sequence[_Task], kept: Sequence[_Task], place: str) -> Iterator[Problem]:
    for job in _MUST_STAY:
        of_job = [task for task in tasks if task.job == job]
        if not of_job or any(task.job == job for task in kept):
            continue
        where = ", ".join(dict.fromkeys(task.host for task in of_job[:8]))
        message = f"no {job} would be left; the spec has {len(of_job)}, on {where}"
        fix = f'keep one of them, or write a spec without "{job}"'
        if job == "worker":
            fix = "keep one of them"
        yield Problem(place, message, fix)


def _key(host: str) -> str:
    """Equal for two spellings of one host."""
    bare = host.strip("[]")
    return Address(f"[{bare}]" if ":" in bare else bare, 0).key[0]
