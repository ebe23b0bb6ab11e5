"""The tasks' output: drained from pipes into log files and streamed to the coordinator."""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable

from tfcluster.agent import catalogue as msg
from tfcluster.agent import protocol
from tfcluster.agent.net.coordinator_link import CoordinatorLink
from tfcluster.agent.tasks.output import drain, size_of
from tfcluster.agent.tasks.task import Task

SMALL_READ = 256 << 10
"""The bytes from all pipes below which a pause follows, unless one pipe was half full."""
TRICKLE = 32 << 10
"""The bytes from all pipes below which the next pause is twice as long."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.004, 0.032
_READ_BYTES = 256 << 10


class Pipes:
    """The pipes that are watched, with pauses after small reads: each pipe's `drain` is called
    when it has data, and returns the number of bytes that it moved."""

    def __init__(
        self, selector: selectors.BaseSelector, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._selector, self._clock = selector, clock
        self._pipes = selectors.DefaultSelector()
        self._sizes: dict[int, int] = {}
        self._pause_s = SHORTEST_PAUSE_S
        self.pause_ends_at: float | None = None
        """The moment when `on_time` must be called next: the end of a pause."""
        self._listen()

    def add(self, pipe: int, drain: Callable[[], int]) -> None:
        self._pipes.register(pipe, selectors.EVENT_READ, drain)
        self._sizes[pipe] = size_of(pipe)

    def discard(self, pipe: int) -> None:
        """Stop watching a pipe, if it is watched."""
        if self._sizes.pop(pipe, 0):
            self._pipes.unregister(pipe)

    def close(self) -> None:
        self._pipes.close()

    def on_time(self, now: float) -> None:
        if self.pause_ends_at is not None and now >= self.pause_ends_at:
            self.pause_ends_at = None
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
        self.pause_ends_at = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)


class LogStreams:
    """The log streams of all tasks of one run on this node."""

    link: CoordinatorLink

    def __init__(self, selector: selectors.BaseSelector) -> None:
        """Prepare; the caller sets `link` before the first task begins."""
        self.pipes = Pipes(selector)
        self._tasks: set[Task] = set()
        self._ended: dict[str, tuple[str, int, int]] = {}
        """Stream of an ended task → path of its log, first and last offset of its output."""

    def begin(self, task: Task) -> None:
        """Drain and stream a task's output from now on."""
        self._tasks.add(task)
        self.pipes.add(task.pipe, lambda: self.drain(task))

    def end(self, task: Task) -> None:
        """Send the rest of a task's output and stop, even if another process holds its pipe."""
        self._tasks.discard(task)
        self.pipes.discard(task.pipe)
        if self.link.wants_logs:
            self._stream(task, whole=True)
        if task.log.lost_bytes:
            self._report_loss(task)
        if self.link.has_lease:
            self._ended[task.stream_name] = (task.log.path, task.log_begin, task.log.size)

    def drain(self, task: Task) -> int:
        """Move a task's waiting output to its log; return the number of bytes."""
        count, ended, unwritten = drain(task.pipe, task.log, echoes=task.attempt > 0)
        if ended:
            self.pipes.discard(task.pipe)
            task.drain_until = 0.0
        if unwritten and self.link.log_room > 0:
            name, where = task.stream_name, protocol.NOT_IN_FILE
            self.link.queue(protocol.data_frame(protocol.LOG, name, where, unwritten))
        if task.log.is_report_due():
            self._report_loss(task)
        if self.link.wants_logs:
            self._stream(task)
        return count

    def resume(self, offsets: dict[str, int]) -> None:
        """Continue for a reconnected coordinator, which has each log up to its offset.

        A log without an offset is sent from its beginning: bytes that were sent last may have been
        lost with the connection.
        """
        for task in self._tasks:
            task.streamed = offsets.get(task.stream_name, task.log_begin)
        if self.link.wants_logs:
            for name, (path, begin, end) in self._ended.items():
                at = offsets.get(name, begin)
                with contextlib.suppress(OSError), open(path, "rb") as log:
                    log.seek(at)
                    while at < end and (data := log.read(min(_READ_BYTES, end - at))):
                        self.link.queue(protocol.data_frame(protocol.LOG, name, at, data))
                        at += len(data)

    def stream(self) -> None:
        """Send what there is room for."""
        if self.link.wants_logs:
            for task in self._tasks:
                self._stream(task)

    def _stream(self, task: Task, *, whole: bool = False) -> None:
        while whole or self.link.log_room > 0:
            data = task.log.read(task.streamed, _READ_BYTES)
            if not data:
                return
            where = task.streamed
            task.streamed += len(data)
            self.link.queue(protocol.data_frame(protocol.LOG, task.stream_name, where, data))

    def _report_loss(self, task: Task) -> None:
        lost, reason = task.log.take_loss(), task.log.loss_reason
        report = msg.LogLost(task=task.name, attempt=task.attempt, bytes=lost, reason=reason)
        self.link.send(report)
