"""TensorBoard event files of a run, written from its events for scripts that write none.

They are in ``tensorboard/tfcluster/TASK`` of the run's folder, beside the folders that the tasks
write into: the metrics and examples per second of the chief (of each task, where the tasks form no
cluster), and the memory of every task, over the training step. Metrics are left out once the task
has event files of its own. A restart goes on in the same folder.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tfcluster.agent.error_text import reason_of
from tfcluster.checkpoints.damage import masked_crc32c
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event
from tfcluster.rundir.paths import RunPaths

FOLDER = "tfcluster"
_LOOK_EVERY_S = 10.0
"""The time between two looks for event files of a task."""
_LEAST_GAP_S, _GAP_SHARE = 1.0, 1 / 500
"""The least time between two points of a task, and the part of its time so far that it grows to:
TensorBoard shows 1,000 points of a curve."""


class RunCurves:
    """The event files of one run; `record` never fails: a full disk ends the curves."""

    def __init__(
        self,
        plan: Plan,
        paths: RunPaths,
        warn: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`warn` is called once, with the reason why there will be no more points."""
        self._paths, self._warn, self._clock = paths, warn, clock
        self._is_over = False
        self._chief = str(plan.chief)
        self._is_gang = plan.kind == "training"
        self._tasks: dict[str, _TaskCurves] = {}

    def record(self, event: Event) -> None:
        """Write what this event adds to the curves."""
        if self._is_over:
            return
        try:
            self._record(event)
        except Exception as problem:  # whatever it is, the training goes on
            self.close()
            self._warn(f"no more TensorBoard curves by tfcluster: {reason_of(problem)}")

    def close(self) -> None:
        """Write what was held back."""
        if self._is_over:
            return
        self._is_over = True
        for name in self._tasks:
            with contextlib.suppress(Exception):
                self._flush(name)

    def _record(self, event: Event) -> None:
        match event:
            case ev.Progress():
                self._note_progress(event)
            case ev.StepTimes(task=name) if name in self._tasks:
                self._note_parts(event)
            case ev.Usage(tasks=tasks):
                for name, used in tasks.items():
                    self._write_memory(name, used)
            case ev.TaskExited(task=name) if name in self._tasks:
                self._flush(name)

    def _note_progress(self, event: ev.Progress) -> None:
        task = self._tasks.setdefault(
            event.task, _TaskCurves(attempt=event.attempt, began=self._clock())
        )
        if event.attempt != task.attempt and task.file is not None:
            # TensorBoard drops what the earlier attempt wrote from this step on.
            task.file.start_again(event.step, self._clock())
        task.attempt, task.step = event.attempt, event.step
        if event.task == self._chief or not self._is_gang:
            if event.metrics or task.waiting is None:  # the agent knows only the step
                task.waiting = event
            now = self._clock()
            if now - task.written >= max(_LEAST_GAP_S, (now - task.began) * _GAP_SHARE):
                self._flush(event.task)

    def _note_parts(self, event: ev.StepTimes) -> None:
        task, now = self._tasks[event.task], self._clock()
        if now - task.parts_written >= (now - task.began) * _GAP_SHARE:
            task.parts_written = now
            values = {f"step/{name}_s": s / event.steps for name, s in event.parts.items()}
            self._add(event.task, task, event.step, values)

    def _flush(self, name: str) -> None:
        """Write the newest progress of a task, if it was held back."""
        task = self._tasks[name]
        progress, task.waiting = task.waiting, None
        if progress is None:
            return
        task.written = self._clock()
        values = {} if self._has_own_files(name, task) else dict(progress.metrics)
        for speed in ("examples_per_second", "steps_per_second"):
            if (value := getattr(progress, speed)) is not None:
                values[speed] = value
        self._add(name, task, progress.step, values)

    def _write_memory(self, name: str, used: Mapping[str, float]) -> None:
        leader = self._tasks.get(self._chief)
        task = self._tasks.get(name)
        if task is None and leader is not None:  # it takes no steps itself: ps, evaluator
            task = self._tasks[name] = _TaskCurves(attempt=leader.attempt, began=self._clock())
        steps = [known.step for known in (task, leader) if known is not None]
        step = next((step for step in steps if step is not None), None)
        if task is not None and step is not None:
            self._add(name, task, step, {"memory_mb": used["rss_bytes"] / 1e6})

    def _add(self, name: str, task: _TaskCurves, step: int, values: Mapping[str, float]) -> None:
        if values:
            if task.file is None:
                folder = self._paths.curves / FOLDER / TaskId.parse(name).file_name
                task.file = EventFile(str(folder), self._clock())
                if task.attempt > 1:  # of a run whose job runs again: see `_note_progress`
                    task.file.start_again(step, self._clock())
            task.file.add(step, values, self._clock())

    def _has_own_files(self, name: str, task: _TaskCurves) -> bool:
        now = self._clock()
        if not task.has_own_files and now - task.looked >= _LOOK_EVERY_S:
            task.looked = now
            folder = self._paths.tensorboard(TaskId.parse(name))
            task.has_own_files = any(folder.rglob("*.tfevents.*"))
        return task.has_own_files


@dataclass(slots=True)
class _TaskCurves:
    """The state of one task's curves; times are those of the clock."""

    attempt: int
    began: float
    step: int | None = None
    waiting: ev.Progress | None = None
    """The newest progress, held back until the next point is due."""
    written: float = float("-inf")
    parts_written: float = float("-inf")
    looked: float = float("-inf")
    has_own_files: bool = False
    file: EventFile | None = None


class EventFile:
    """A file of TensorBoard events: TFRecords of `Event` protocol buffers.

    Sources: tensorflow/core/lib/io/record_writer.h, core/util/event.proto, framework/summary.proto.
    """

    def __init__(self, folder: str, now: float) -> None:
        """Create a new file in `folder`. Raises OSError."""
        os.makedirs(folder, exist_ok=True)
        name = f"events.out.tfevents.{int(now)}.tfcluster.{os.getpid()}"
        self._path = os.path.join(folder, name)
        self._write(_double(1, now) + _bytes(3, b"brain.Event:2"))

    def add(self, step: int, values: Mapping[str, float], now: float) -> None:
        """Add a point to the curve of each name in `values`."""
        summary = b"".join(
            # A name from JSON can have a lone surrogate, which UTF-8 lacks.
            _bytes(1, _bytes(1, name.encode(errors="replace")) + b"\x15" + _float32(value))
            for name, value in values.items()
        )
        self._write(_double(1, now) + _number(2, step) + _bytes(5, summary))

    def start_again(self, step: int, now: float) -> None:
        """Have TensorBoard forget what was added from `step` on: another attempt repeats it."""
        session_start = _number(1, 1)
        self._write(_double(1, now) + _number(2, step) + _bytes(7, session_start))

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        record = length + _checksum(length) + event + _checksum(event)
        # Not kept open: a thousand tasks have a thousand files.
        with open(self._path, "ab", buffering=0) as file:
            file.write(record)


def _number(field_number: int, value: int) -> bytes:
    return _varint(field_number << 3) + _varint(value & (1 << 64) - 1)


def _double(field_number: int, value: float) -> bytes:
    return _varint(field_number << 3 | 1) + struct.pack("<d", value)


def _bytes(field_number: int, value: bytes) -> bytes:
    return _varint(field_number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _float32(value: float) -> bytes:
    largest = 3.4028234e38
    return struct.pack("<f", value if value != value else max(-largest, min(largest, value)))


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(data))
