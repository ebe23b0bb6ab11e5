"""The tasks' output: drained from pipes into log files and streamed to the coordinator."""

from __future__ import annotations

import contextlib
import selectors
import time

from tfcluster.agent import protocol
from tfcluster.agent.tasks.output import drain, size_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable, Iterator

    from tfcluster.agent.net.session import Line
    from tfcluster.agent.tasks.task import Task


SMALL_READ = 256 << 10
"""Of all pipes together; a pipe that was half full is no small read either."""
TRICKLE = 32 << 10
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.004, 0.032
"""Doubling while no read is more than a trickle."""


class Pipes:
    """Calls `drain` for each pipe that holds something; that returns how many bytes it moved."""

    def __init__(
        self, selector: selectors.BaseSelector, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._selector, self._clock = selector, clock
        self._pipes = selectors.DefaultSelector()
        self._sizes: dict[int, int] = {}
        self._pause_s = SHORTEST_PAUSE_S
        self.listens_at: float | None = None
        """When `on_time` must be called next: the end of a pause."""
        self._listen()

    def add(self, pipe: int, drain: Callable[[], int]) -> None:
        self._pipes.register(pipe, selectors.EVENT_READ, drain)
        self._sizes[pipe] = size_of(pipe)

    def discard(self, pipe: int) -> None:
        """Listen to it no more, if anybody does."""
        if self._sizes.pop(pipe, 0):
            self._pipes.unregister(pipe)

    def close(self) -> None:
        self._pipes.close()

    def on_time(self, now: float) -> None:
        if self.listens_at is not None and now >= self.listens_at:
            self.listens_at = None
            self._listen()

    def _listen(self) -> None:
        self._selector.register(self._pipes, selectors.EVENT_READ, lambda _events: self._drain())

    def _drain(self) -> None:
        moved = {key.fd: key.data() for key, _ in self._pipes.select(0)}
        total = sum(moved.values())
        if total >= TRICKLE:
            self._pause_s = SHORTEST_PAUSE_S
        if total >= SMALL_READ or any(
            2 * count >= self._sizes.get(pipe, SMALL_READ) for pipe, count in moved.items()
        ):
            return
        self._selector.unregister(self._pipes)
        self.listens_at = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)


_ENDED_READ_BYTES = 256 << 10


class EndedLogs:
    """Remembers places in files, never their contents."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[str, int, int]] = {}
        """Stream → path, first and last offset of the task's output."""

    def add(self, task: Task) -> None:
        self._places[task.stream_name] = (task.log.path, task.log_begin, task.log.size)

    def missing(self, offsets: dict[str, int]) -> Iterator[bytes]:
        """Frames with all that a coordinator lacks that has each stream up to its offset."""
        for name, (path, begin, end) in self._places.items():
            at = offsets.get(name, begin)
            with contextlib.suppress(OSError), open(path, "rb") as log:
                log.seek(at)
                while at < end and (data := log.read(min(_ENDED_READ_BYTES, end - at))):
                    yield protocol.data_frame(protocol.LOG, name, at, data)
                    at += len(data)


_READ_BYTES = 256 << 10


class LogStreams:
    """Of all tasks of one run on this node."""

    line: Line

    def __init__(self, selector: selectors.BaseSelector) -> None:
        """Set `line` before the first task begins."""
        self.pipes = Pipes(selector)
        self._tasks: set[Task] = set()
        self._ended_logs = EndedLogs()

    def begin(self, task: Task) -> None:
        """Move what it writes, from now on."""
        self._tasks.add(task)
        self.pipes.add(task.pipe, lambda: self.drain(task))

    def end(self, task: Task) -> None:
        """Nothing more is to be moved, also where something holds its pipe; all is sent."""
        self._tasks.discard(task)
        self.pipes.discard(task.pipe)
        if self.line.wants_logs:
            self._stream(task, whole=True)
        if task.log.lost_bytes:
            self._report_loss(task)
        if self.line.has_lease:
            self._ended_logs.add(task)

    def drain(self, task: Task) -> int:
        """Move the output that waits to the log; returns how many bytes that were."""
        count, ended, unwritten = drain(task.pipe, task.log)
        if ended:
            self.pipes.discard(task.pipe)
            task.drain_until = 0.0
        if unwritten and self.line.log_room > 0:
            name, where = task.stream_name, protocol.NOT_IN_FILE
            self.line.queue(protocol.data_frame(protocol.LOG, name, where, unwritten))
        if task.log.lost_bytes and task.loss_report.is_due():
            self._report_loss(task)
        if self.line.wants_logs:
            self._stream(task)
        return count

    def resume(self, offsets: dict[str, int]) -> None:
        """A coordinator is back and has each log up to its offset; of one it does not name,
        nothing: what was sent last may have been lost with the connection."""
        for task in self._tasks:
            task.streamed = offsets.get(task.stream_name, task.log_begin)
        if self.line.wants_logs:
            for frame in self._ended_logs.missing(offsets):
                self.line.queue(frame)

    def stream(self) -> None:
        """There may be room on the line again."""
        if self.line.wants_logs:
            for task in self._tasks:
                self._stream(task)

    def _stream(self, task: Task, *, whole: bool = False) -> None:
        while whole or self.line.log_room > 0:
            data = task.log.read(task.streamed, _READ_BYTES)
            if not data:
                return
            where = task.streamed
            task.streamed += len(data)
            self.line.queue(protocol.data_frame(protocol.LOG, task.stream_name, where, data))

    def _report_loss(self, task: Task) -> None:
        named = {"task": task.name, "attempt": task.attempt}
        lost, reason = task.log.take_loss(), task.log.lost_because
        self.line.say({"type": "log_lost", **named, "bytes": lost, "reason": reason})
