"""The tasks of one run on this node: their output, their reports, their ends."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import time

from tfcluster.agent import leftovers, protocol, stop
from tfcluster.agent.ended_logs import EndedLogs
from tfcluster.agent.memory import Witness
from tfcluster.agent.output import drain
from tfcluster.agent.processes import kill_descendants
from tfcluster.agent.task import MAX_EVENT, StartError, Task, fork_and_exec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from tfcluster.agent.guard import Recorder
    from tfcluster.agent.line import Line
    from tfcluster.agent.outside import Outside
    from tfcluster.agent.preloader import Preloader
    from tfcluster.agent.task import Fork

PROGRESS_BACKLOG = 1000
"""Unacknowledged messages above which progress (replaced by the next anyway) is dropped."""
MOST_REPORTS = 1000
"""Read from one task in one turn: more than its socket holds, and the others get theirs."""
_READ_BYTES = 256 << 10
_END_S = 1.5
_ENDED_STOPPED_CONTINUED = os.WNOHANG | os.WUNTRACED | os.WCONTINUED


class Crew:
    """Starts tasks, follows them, ends them; everything worth telling goes to the line."""

    line: Line

    def __init__(
        self,
        recorder: Recorder,
        selector: selectors.BaseSelector,
        outside: Outside | None,
        preloader: Preloader,
    ) -> None:
        """Set `line` before the first task is started. `outside` starts attempt 0, `prepare`,
        where the tasks' network is private."""
        self._recorder, self._selector, self._outside = recorder, selector, outside
        self._preloader = preloader
        self._tasks: dict[str, Task] = {}
        self._witness = Witness()
        self._ended: dict[str, frozenset[bytes]] = {}
        """What the processes of each task's last attempt can be known by."""
        self._ended_logs = EndedLogs()
        self._gang_since = 0
        """Start time of the first task since none ran; 0: nothing but `prepare` has run."""
        self.companions: set[int] = set()
        """Children of the agent that are no tasks', and no leftovers of theirs."""
        self.moved = 0
        """Bytes of output moved since somebody set this to 0."""

    def start_all(self, specs: list[dict[str, Any]], attempt: int) -> None:
        """What earlier attempts of these tasks left running ends first."""
        if attempt > 0 and self._outside is not None:
            self._outside.close()
        self._end_leftovers([spec["task"] for spec in specs])
        forked = [self._fork(spec, attempt) for spec in specs]
        for task in filter(None, forked):
            self._confirm(task)

    def _end_leftovers(self, names: list[str]) -> None:
        pids = {task.pid for task in self._tasks.values()}
        living = pids | self.companions | {self._preloader.pid}
        tests = [leftovers.carries(self._ended.pop(name)) for name in names if name in self._ended]
        if not self._tasks and self._gang_since:
            tests = [leftovers.began_since(self._gang_since)]
        if tests:
            stuck = leftovers.end(living, lambda pid: any(t(pid) for t in tests), self.reap)
            if stuck:
                self.line.say({"type": "unkillable", "task": None, "pids": stuck})

    def _fork(self, spec: dict[str, Any], attempt: int) -> Task | None:
        named = {"task": spec["task"], "attempt": attempt}
        if spec["task"] in self._tasks:
            self.line.say({"type": "start_failed", **named, "error": "it is still running"})
            return None
        try:
            task = Task(spec, attempt, self._how_to_fork(spec, attempt))
        except OSError as error:
            self.line.say({"type": "start_failed", **named, "error": str(error)})
            return None
        self._recorder.add_group(task.pid, task.start_time)
        if not self._tasks and attempt > 0:
            self._gang_since = task.start_time
        self._tasks[task.name] = task
        return task

    def _how_to_fork(self, spec: dict[str, Any], attempt: int) -> Fork:
        if attempt == 0 and self._outside is not None:
            return self._outside.fork
        return self._preloader.fork if spec.get("preload") else fork_and_exec

    def _confirm(self, task: Task) -> None:
        named = {"task": task.name, "attempt": task.attempt}
        try:
            task.confirm()
        except StartError as error:
            del self._tasks[task.name]
            self._recorder.drop_group(task.pid)
            self.line.say({"type": "start_failed", **named, "error": str(error)})
            return
        task.kills_before = self._witness.look(task.pid)
        read = selectors.EVENT_READ
        self._selector.register(task.pipe, read, lambda _events: self._drain(task))
        self._selector.register(task.events, read, lambda _events: self._hear(task))
        self.line.say({"type": "task_started", **named, "pid": task.pid})

    def stop(self, names: list[str], grace_s: float) -> None:
        for name in names:
            if name in self._tasks:
                stop.ask_to_end(self._tasks[name], grace_s)

    def signal(self, names: list[str], number: int) -> None:
        """To the tasks' own processes only: their children need not know the signal."""
        for name in names:
            task = self._tasks.get(name)
            if task is not None and task.usage is None:
                task.killed_by_order = task.killed_by_order or number == signal.SIGKILL
                with contextlib.suppress(ProcessLookupError):
                    os.kill(task.pid, number)

    # -- the clock

    def deadline(self) -> float | None:
        """When `on_time` must be called next."""
        at: list[float | None] = [self._preloader.deadline]
        for task in self._tasks.values():
            ended = task.usage is not None
            at += [task.drain_until] if ended else [task.kill_at, task.unkillable_at]
        return min((when for when in at if when is not None), default=None)

    def on_time(self, now: float) -> None:
        self._preloader.on_time(now)
        for task in list(self._tasks.values()):
            stop.climb(task, now)
            if task.usage is None and task.unkillable_at is not None and now >= task.unkillable_at:
                self._tell_unkillable(task)
            if task.usage is not None and now >= task.drain_until:
                self._finish(task)

    # -- output

    def resume_logs(self, offsets: dict[str, int]) -> None:
        """A coordinator is back and has each log up to its offset; of one it does not name,
        nothing: what was sent last may have been lost with the connection."""
        for task in self._tasks.values():
            task.streamed = offsets.get(task.stream_name, task.log_begin)
        if self.line.wants_logs:
            for frame in self._ended_logs.missing(offsets):
                self.line.queue(frame)

    def stream_logs(self) -> None:
        if self.line.wants_logs:
            for task in self._tasks.values():
                self._stream(task)

    def _stream(self, task: Task, *, whole: bool = False) -> None:
        while whole or self.line.log_room > 0:
            data = task.log.read(task.streamed, _READ_BYTES)
            if not data:
                return
            where = task.streamed
            task.streamed += len(data)
            self.line.queue(protocol.data_frame(protocol.LOG, task.stream_name, where, data))

    def _drain(self, task: Task) -> None:
        """Move the output that waits to the log."""
        count, ended, unwritten = drain(task.pipe, task.log)
        self.moved += count
        if ended:
            self._unwatch(task.pipe)
            task.drain_until = 0.0
        if unwritten and self.line.log_room > 0:
            name, where = task.stream_name, protocol.NOT_IN_FILE
            self.line.queue(protocol.data_frame(protocol.LOG, name, where, unwritten))
        if task.log.lost_bytes and task.loss_report.is_due():
            self._report_loss(task)
        if self.line.wants_logs:
            self._stream(task)

    def _report_loss(self, task: Task) -> None:
        named = {"task": task.name, "attempt": task.attempt}
        lost, reason = task.log.take_loss(), task.log.lost_because
        self.line.say({"type": "log_lost", **named, "bytes": lost, "reason": reason})

    # -- reports

    def _hear(self, task: Task) -> None:
        """Pass on what the task reports; malformed messages are dropped, they are the task's."""
        for _ in range(MOST_REPORTS):
            try:
                raw = task.events.recv(MAX_EVENT + 1)
            except BlockingIOError:
                return
            except OSError:
                raw = b""
            if not raw:
                self._unwatch(task.events)
                return
            with contextlib.suppress(ValueError, RecursionError):
                self._pass_on(task, json.loads(raw))

    def _pass_on(self, task: Task, event: Any) -> None:
        if not isinstance(event, dict):
            return
        if event.get("type") == "progress" and self.line.backlog > PROGRESS_BACKLOG:
            return
        named = {"task": task.name, "attempt": task.attempt}
        self.line.say({"type": "task_event", **named, "event": event})

    # -- ends

    def reap(self) -> None:
        """Every child that has ended: tasks, and strangers their tasks left behind; and tasks
        that were stopped (SIGSTOP, a debugger) or go on."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, _ENDED_STOPPED_CONTINUED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for task in self._tasks.values():
                if task.pid == pid and task.usage is None:
                    if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                        self._tell_of_stop(task, status)
                    else:
                        task.note_end(status, usage.ru_maxrss)
                        if task.was_killed_by_others:
                            task.oom = self._witness.evidence(pid, task.kills_before)
                        self._read_the_rest(task)

    def _tell_of_stop(self, task: Task, status: int) -> None:
        if task.stopping:
            return  # the ladder continues what it ends
        named = {"task": task.name, "attempt": task.attempt}
        if os.WIFSTOPPED(status):
            self.line.say({"type": "task_stopped", **named, "signal": os.WSTOPSIG(status)})
        else:
            self.line.say({"type": "task_continued", **named})

    def _read_the_rest(self, task: Task) -> None:
        """All it wrote and reported itself; a grandchild that goes on gets `drain_until`."""
        self._hear(task)
        task.drain_until = time.monotonic() + stop.DRAIN_S
        for _ in ("what a full pipe holds", "its end"):
            self._drain(task)

    def _finish(self, task: Task) -> None:
        stop.clear_group(task)
        self._unwatch(task.pipe)
        self._unwatch(task.events)
        if self.line.wants_logs:
            self._stream(task, whole=True)
        if task.log.lost_bytes:
            self._report_loss(task)
        del self._tasks[task.name]
        self._ended[task.name] = task.marks
        if self.line.has_lease:
            self._ended_logs.add(task)
        task.close()
        self._recorder.drop_group(task.pid)
        self.line.say(task.exited_message())

    def end_all(self, spare: Collection[int] = ()) -> None:
        """SIGKILL every group and every descendant outside of them but `spare`, reap, report.

        Whoever does not end within seconds is in uninterruptible sleep, and is left to the kernel.
        """
        now = time.monotonic()
        for task in self._tasks.values():
            stop.kill(task, now)
        deadline = now + _END_S
        while any(task.usage is None for task in self._tasks.values()):
            self.reap()
            if time.monotonic() > deadline:
                break
            time.sleep(0.002)
        kill_descendants(_END_S, spare)
        for task in list(self._tasks.values()):
            if task.usage is not None:
                self._finish(task)
            elif not task.is_unkillable:
                self._tell_unkillable(task)

    def _tell_unkillable(self, task: Task) -> None:
        task.is_unkillable, task.unkillable_at = True, None
        named = {"task": task.name, "attempt": task.attempt}
        self.line.say({"type": "unkillable", **named, "pids": [task.pid]})

    def _unwatch(self, fileobj: Any) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(fileobj)
