"""Reads the curves of a run's tasks and its timeline from ``events.jsonl``.

A long run has a million events, nearly all of them `progress`, `usage` and `step_times`. Of a file
beyond `_PARSED_WHOLE_BYTES`, those are parsed at a stride; all others, which a pattern finds, and
values that are not finite stay visible. Nothing in the file can raise: what is malformed is left
out.
"""

from __future__ import annotations

import math
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from tfcluster.agent import foreign_json
from tfcluster.agent.foreign_json import open_regular
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import choose_leader, to_json_numbers
from tfcluster.rundir.task_logs import rank

Point = tuple[float, int | None, float]
"""Seconds since the run's first event, step (None where it is not known), and value."""

TIMELINE: Final = frozenset(
    {
        *("run_started", "run_queued", "run_continued", "nodes_allocated", "resumed"),
        *("task_started", "task_ready", "task_error", "task_exited", "task_frozen", "task_thawed"),
        *("node_lost", "node_unreachable", "node_reconnected", "node_back"),
        *("stalled", "stall_ended", "step_verdict", "restarting"),
        *("chaos_injected", "diagnosis", "alert", "warned", "log_lost"),
        *("checkpoint_gathered", "trial"),
        *("finishing", "run_stopping", "run_finished", "prepare_finished"),
    }
)
"""The types of the events of a timeline."""

POINTS: Final = 600
"""The points of a curve, where no other number is asked for."""
_PROGRESS: Final = ("metric", "speed")
"""The kinds of the curves from a task's own reports of its progress."""
_SPEEDS: Final = ("steps_per_second", "examples_per_second")
_USAGE: Final = ("rss_bytes", "cores", "gpu", "gpu_memory_bytes")
_NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MOST_TASKS: Final = 64
_MOST_METRICS: Final = 32
"""Curves of one task and kind, and tasks with curves; further ones are left out."""
_PARSED_WHOLE_BYTES: Final = 4 << 20
_SAMPLES: Final = 10_000
"""The number of lines that are parsed of a longer file."""
_BLOCK: Final = 128 * 1024
"""The bytes read at once: glibc reuses the memory of blocks up to this size."""
_LONGEST_LINE: Final = 1 << 20
_KEPT_FIRST, _KEPT_LAST = 100, 300
"""The events of one type in a timeline."""
_LONGEST_STRING: Final = 2000
_COUNTED: Final = re.compile(rb'"type":"(?:progress|usage|step_times|task_started)"')
_RARE: Final = re.compile(rb'"type":"(?!progress"|usage"|step_times")([a-z_]{1,40})"')


@dataclass(frozen=True, slots=True)
class Curve:
    """The values of one quantity of one task."""

    task: str
    kind: str
    """``metric``, ``speed`` (steps_per_second, examples_per_second), ``usage`` (rss_bytes, cores,
    gpu, gpu_memory_bytes) or ``step``: the seconds of a step that a part of it takes (input,
    compute, waiting, transfer, callbacks, other)."""
    name: str
    points: tuple[Point, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the curve for JSON; NaN and infinities are strings."""
        points = [(time, step, _to_json_number(value)) for time, step, value in self.points]
        return {"task": self.task, "kind": self.kind, "name": self.name, "points": points}


@dataclass(frozen=True, slots=True)
class Moment:
    """One event of the timeline."""

    time: float
    """Seconds since the run's first event."""
    event: Mapping[str, Any]
    """The event as in ``events.jsonl``; long strings are cut."""

    @property
    def type(self) -> str:
        return str(self.event["type"])


@dataclass(frozen=True, eq=False)
class History(dict[str, list[Any]]):
    """The curves and the timeline of a run.

    As a dict it has the columns of a table, which `pandas.DataFrame` takes: `task`, `time`, `step`,
    and one for each name of a curve; those of a step's parts are called ``input_s``. A row is what
    one task reported at one time, the chief's first; NaN where it did not report a value.
    """

    started_at: float
    """The time of the run's first event, seconds since 1970; 0 without any."""
    curves: tuple[Curve, ...]
    """The chief's curves first."""
    timeline: tuple[Moment, ...]
    skipped: int
    """The number of moments that are left out: of one type only the first and last ones stay."""

    def __post_init__(self) -> None:
        self.update(_to_columns(self.curves))

    @property
    def chief(self) -> str | None:
        """The task whose metrics stand for the run; None if no task has reported any."""
        return next((curve.task for curve in self.curves if curve.kind in _PROGRESS), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "started_at": self.started_at,
            "curves": [curve.to_json() for curve in self.curves],
            "timeline": [{"t": moment.time} | dict(moment.event) for moment in self.timeline],
            "skipped": self.skipped,
        }


def _to_columns(curves: Sequence[Curve]) -> dict[str, list[Any]]:
    """Return column → values of all rows; see `History`."""
    rows: dict[tuple[str, float, int | None], dict[str, float]] = {}
    for curve in curves:
        column = f"{curve.name}_s" if curve.kind == "step" else curve.name
        for time, step, value in curve.points:
            rows.setdefault((curve.task, time, step), {})[column] = value
    ranks = {curve.task: place for place, curve in enumerate(reversed(curves))}
    keys = sorted(rows, key=lambda row: (-ranks[row[0]], row[1]))
    columns: dict[str, list[Any]] = {
        "task": [task for task, _, _ in keys],
        "time": [time for _, time, _ in keys],
        "step": [math.nan if step is None else step for _, _, step in keys],
    }
    for name in dict.fromkeys(chain.from_iterable(rows.values())):
        columns.setdefault(name, [rows[key].get(name, math.nan) for key in keys])
    return columns


def read_history(paths: RunPaths, *, most: int = POINTS) -> History:
    """Return what happened in a run, from its ``events.jsonl``.

    A curve has at most `most` points, fewer with many tasks; its least and greatest values stay.
    The parts of a task's steps have the same times, and those of its longest steps stay.
    A file that cannot be read is an empty history.
    """
    try:
        with open_regular(paths.events) as file:
            started_at = _time_of(_parse(os.pread(file.fileno(), _BLOCK, 0).partition(b"\n")[0]))
            collector = _Collector(started_at or 0.0)
            collector.read(file.fileno())
    except OSError:
        return History(0.0, (), (), 0)
    return collector.history(most)


def downsample(points: Sequence[Point], most: int) -> tuple[Point, ...]:
    """Return at most `most` points (at least 8) in which extremes and non-finite values stay.

    The first and the last point stay; of each bucket between them, the least and the greatest
    value and the first that is not finite do.
    """
    if len(points) <= most:
        return tuple(points)
    per_bucket = 2 if all(math.isfinite(value) for _, _, value in points) else 3
    inner = len(points) - 2
    buckets = max(1, (most - 2) // per_bucket)
    kept = {0, len(points) - 1}
    for bucket in range(buckets):
        start, end = 1 + bucket * inner // buckets, 1 + (bucket + 1) * inner // buckets
        finite = [i for i in range(start, end) if math.isfinite(points[i][2])]
        if finite:
            kept.add(min(finite, key=lambda index: points[index][2]))
            kept.add(max(finite, key=lambda index: points[index][2]))
        if len(finite) < end - start:
            kept.add(next(i for i in range(start, end) if not math.isfinite(points[i][2])))
    return tuple(points[index] for index in sorted(kept))


class _Collector:
    """The curves and the timeline while the file is read."""

    def __init__(self, started_at: float) -> None:
        self.started_at = started_at
        self._points: dict[tuple[str, str, str], list[Point]] = {}
        self._curves: dict[tuple[str, str], int] = {}
        """Task and kind → number of curves."""
        self._steps: dict[str, int] = {}
        self._first: dict[bytes, list[tuple[int, bytes]]] = {}
        self._last: dict[bytes, deque[tuple[int, bytes]]] = {}
        self._moments = 0

    def read(self, fd: int) -> None:
        """Read all whole lines."""
        size = os.fstat(fd).st_size
        stride = max(1, size // _SAMPLES)
        for start, block in _blocks(fd):
            self._collect_moments(block, start)
            is_newest = start + len(block) + _BLOCK > size  # these values are always exact
            is_whole = is_newest or size <= _PARSED_WHOLE_BYTES
            for line in block.split(b"\n") if is_whole else _sample(block, stride):
                self._collect_points(line)

    def history(self, most: int) -> History:
        share = max(60, 40 * most // max(1, len(self._points)))
        reported = {task for task, kind, _ in self._points if kind in _PROGRESS}
        chief = choose_leader({task: self._steps.get(task, 0) for task in reported})

        def place(key: tuple[str, str, str]) -> tuple[object, ...]:
            task, kind, _ = key
            return kind not in _PROGRESS, task != chief, rank(task)

        def fewer(task: str, points: Sequence[Point]) -> tuple[Point, ...]:
            return downsample(points, most if task == chief else min(most, share))

        step_times = {
            task: {time for time, _, _ in fewer(task, steps)}
            for task, steps in self._whole_steps().items()
        }
        curves = []
        for task, kind, name in sorted(self._points, key=place):
            points = self._points[task, kind, name]
            if kind == "step":
                kept = tuple(point for point in points if point[0] in step_times[task])
            else:
                kept = fewer(task, points)
            curves.append(Curve(task, kind, name, kept))
        moments = self._timeline()
        return History(self.started_at, tuple(curves), moments, self._moments - len(moments))

    def _whole_steps(self) -> dict[str, list[Point]]:
        """Return task → the time of a step: the sums of the parts that were reported together."""
        sums: dict[str, dict[float, float]] = {}
        for (task, kind, _), points in self._points.items():
            if kind == "step":
                of_task = sums.setdefault(task, {})
                for time, _, seconds in points:
                    of_task[time] = of_task.get(time, 0.0) + seconds
        return {
            task: [(time, None, of_task[time]) for time in sorted(of_task)]
            for task, of_task in sums.items()
        }

    def _collect_moments(self, block: bytes, offset: int) -> None:
        """Keep the lines of the events for the timeline."""
        for match in _RARE.finditer(block):
            if (name := match[1]).decode() not in TIMELINE:
                continue
            start, end = block.rfind(b"\n", 0, match.start()) + 1, block.find(b"\n", match.end())
            entry = (offset + start, block[start:end])
            self._moments += 1
            first = self._first.setdefault(name, [])
            if len(first) < _KEPT_FIRST:
                first.append(entry)
            else:
                self._last.setdefault(name, deque(maxlen=_KEPT_LAST)).append(entry)

    def _timeline(self) -> tuple[Moment, ...]:
        lines = sorted(chain(*self._first.values(), *self._last.values()))
        moments = []
        for _, line in lines:
            event = _parse(line)
            time = _time_of(event)
            if time is not None and event.get("type") in TIMELINE:
                moments.append(Moment(round(time - self.started_at, 3), cut(event)))
        return tuple(moments)

    def _collect_points(self, line: bytes) -> None:
        if not _COUNTED.search(line):
            return
        event = _parse(line)
        time, kind, tasks = _time_of(event), event.get("type"), event.get("tasks")
        if time is None:
            return
        time = round(time - self.started_at, 3)
        if kind == "task_started":
            self._steps.pop(str(event.get("task")), None)
        elif kind == "progress":
            self._add_progress(time, event)
        elif kind == "step_times":
            self._add_parts(time, event)
        elif kind == "usage" and isinstance(tasks, dict):
            for task, used in tasks.items():
                if isinstance(used, dict):
                    self._add(time, task, "usage", {n: used[n] for n in _USAGE if n in used})

    def _add_progress(self, time: float, event: Mapping[str, Any]) -> None:
        task, step, metrics = event.get("task"), event.get("step"), event.get("metrics")
        if not isinstance(task, str):
            return
        if (number := _step(step)) is not None:
            self._steps[task] = number
        if isinstance(metrics, dict):
            self._add(time, task, "metric", metrics)
        self._add(time, task, "speed", {name: event.get(name) for name in _SPEEDS})

    def _add_parts(self, time: float, event: Mapping[str, Any]) -> None:
        task, parts, steps = event.get("task"), event.get("parts"), _step(event.get("steps")) or 0
        if isinstance(task, str) and isinstance(parts, dict) and steps > 0:
            numbers = ((name, _number(seconds)) for name, seconds in parts.items())
            of_a_step = {name: number / steps for name, number in numbers if number is not None}
            self._add(time, task, "step", of_a_step, step=_step(event.get("step")))

    def _add(
        self,
        time: float,
        task: str,
        kind: str,
        values: Mapping[str, Any],
        *,
        step: int | None = None,
    ) -> None:
        """Add a point to each curve, at the step that the task is at unless `step` is given."""
        if step is None:
            step = self._steps.get(task)
        for name, value in values.items():
            number = _number(value)
            if number is None:
                continue
            points = self._points.get((task, kind, name))
            if points is None:
                if not self._has_room(task, kind):
                    return
                points = self._points[task, kind, name] = []
                self._curves[task, kind] = self._curves.get((task, kind), 0) + 1
            points.append((time, step, number))

    def _has_room(self, task: str, kind: str) -> bool:
        if (task, kind) in self._curves:
            return self._curves[task, kind] < _MOST_METRICS
        # Its curves stand for the run, however many tasks report before it.
        is_leader = task in ("chief:0", "worker:0")
        return is_leader or sum(known == kind for _, known in self._curves) < _MOST_TASKS


def _blocks(fd: int) -> Iterator[tuple[int, bytes]]:
    """Yield offset and bytes of blocks of whole lines; a line without end, or too long, is left."""
    offset, size = 0, _BLOCK
    while block := os.pread(fd, size, offset):
        end = block.rfind(b"\n") + 1
        if end:
            yield offset, block if end == len(block) else block[:end]
            offset, size = offset + end, _BLOCK
        elif len(block) < size:
            return
        else:
            size *= 2


def _sample(block: bytes, stride: int) -> Iterator[bytes]:
    """Yield about one line for every `stride` bytes, and the first one that is not finite."""
    end = 0
    for position in range(0, len(block), stride):
        if position >= end:
            start = block.find(b"\n", position) + 1 if position else 0
            end = block.find(b"\n", start)
            yield block[start:end]
    for name in (b'NaN"', b'Infinity"'):
        # Most blocks have no such letter, and a search for one byte is ten times as fast.
        if name[:1] in block and (at := block.find(name)) >= 0:
            yield block[block.rfind(b"\n", 0, at) + 1 : block.find(b"\n", at)]


def _parse(line: bytes) -> dict[str, Any]:
    """Return the event in a line; an empty one if it is malformed or far too long."""
    try:
        return foreign_json.parse_json_object(line) if len(line) <= _LONGEST_LINE else {}
    except ValueError:
        return {}


def _time_of(event: Mapping[str, Any]) -> float | None:
    time = _number(event.get("time"))
    return time if time is not None and 0 <= time < 1e12 else None


def _step(value: Any) -> int | None:
    """Return an integer of an event that a page can read; None for anything else."""
    return int(value) if isinstance(value, int) and abs(value) < 1 << 53 else None


def _number(value: Any) -> float | None:
    """Return a number of an event; None for anything else."""
    if isinstance(value, str):
        return _NON_FINITE.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def cut(value: Any, depth: int = 4) -> Any:
    """Return a value of an event with long strings and long lists cut."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_STRING else f"{value[:_LONGEST_STRING]}…"
    if isinstance(value, list | dict) and not depth:
        return None
    if isinstance(value, list):
        return [cut(item, depth - 1) for item in value[:100]]
    if isinstance(value, dict):
        return {cut(name): cut(item, depth - 1) for name, item in list(value.items())[:100]}
    return _to_json_number(value) if isinstance(value, float) else value


def _to_json_number(value: float) -> float | str:
    return to_json_numbers({"": value})[""]
