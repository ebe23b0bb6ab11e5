"""The way of the tasks' output: from pipes to logs, and on to whoever wants to see it."""

from __future__ import annotations

from tfcluster.agent import protocol
from tfcluster.agent.ended_logs import EndedLogs
from tfcluster.agent.output import drain
from tfcluster.agent.pipes import Pipes

TYPE_CHECKING = False
if TYPE_CHECKING:
    import selectors

    from tfcluster.agent.line import Line
    from tfcluster.agent.task import Task

_READ_BYTES = 256 << 10


class Outflow:
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
