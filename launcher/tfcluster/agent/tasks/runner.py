"""The tasks of one run on this node: their starts, their reports, their ends."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time

from tfcluster.agent.error_text import describe_error
from tfcluster.agent.foreign_json import parse_json_object
from tfcluster.agent.node.limits import Witness
from tfcluster.agent.processes import kill_descendants
from tfcluster.agent.tasks import stray_processes
from tfcluster.agent.tasks.task import (
    DRAIN_S,
    MAX_EVENT,
    StartError,
    Task,
    clear_group,
    escalate,
    fork_and_exec,
    kill,
    request_stop,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from tfcluster.agent.guard import Recorder
    from tfcluster.agent.net.session import Line
    from tfcluster.agent.tasks.host_network_spawner import HostNetworkSpawner
    from tfcluster.agent.tasks.log_streaming import LogStreams
    from tfcluster.agent.tasks.preloader import Preloader
    from tfcluster.agent.tasks.task import Fork

PROGRESS_BACKLOG = 1000
"""Unacknowledged messages above which progress (replaced by the next anyway) is dropped."""
MOST_REPORTS = 1000
"""Read from one task in one turn: more than its socket holds, and the others get theirs."""
_END_S = 1.5
_ENDED_STOPPED_CONTINUED = os.WNOHANG | os.WUNTRACED | os.WCONTINUED


class TaskRunner:
    """Starts tasks, follows them, ends them; everything worth telling goes to the line."""

    line: Line

    def __init__(
        self,
        recorder: Recorder,
        selector: selectors.BaseSelector,
        outside: HostNetworkSpawner | None,
        preloader: Preloader,
        outflow: LogStreams,
    ) -> None:
        """Set `line` before the first task is started. `outside` starts attempt 0, `prepare`,
        where the tasks' network is private."""
        self._recorder, self._selector, self._outside = recorder, selector, outside
        self._preloader, self._outflow = preloader, outflow
        self._tasks: dict[str, Task] = {}
        self._witness = Witness()
        self._ended: dict[str, frozenset[bytes]] = {}
        """What the processes of each task's last attempt can be known by."""
        self._gang_since = 0
        """Start time of the first task since none ran; 0: nothing but `prepare` has run."""
        self.companions: set[int] = set()
        """Children of the agent that are no tasks', and no leftovers of theirs."""

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
        tests = [
            stray_processes.carries(self._ended.pop(name)) for name in names if name in self._ended
        ]
        if not self._tasks and self._gang_since:
            tests = [stray_processes.began_since(self._gang_since)]
        if tests:
            stuck = stray_processes.end(living, lambda pid: any(t(pid) for t in tests), self.reap)
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
            self.line.say({"type": "start_failed", **named, "error": describe_error(error)})
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
        self._outflow.begin(task)
        read = selectors.EVENT_READ
        self._selector.register(task.events, read, lambda _events: self._hear(task))
        self.line.say({"type": "task_started", **named, "pid": task.pid})

    def stop(self, names: list[str], grace_s: float) -> None:
        for name in names:
            if name in self._tasks:
                request_stop(self._tasks[name], grace_s)

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
        at = [self._preloader.deadline, self._outflow.pipes.listens_at]
        for task in self._tasks.values():
            ended = task.usage is not None
            at += [task.drain_until] if ended else [task.kill_at, task.unkillable_at]
        return min((when for when in at if when is not None), default=None)

    def on_time(self, now: float) -> None:
        self._preloader.on_time(now)
        self._outflow.pipes.on_time(now)
        for task in list(self._tasks.values()):
            escalate(task, now)
            if task.usage is None and task.unkillable_at is not None and now >= task.unkillable_at:
                self._report_unkillable(task)
            if task.usage is not None and now >= task.drain_until:
                self._finish(task)

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
                self._unwatch(task)
                return
            if not task.reports.take(raw, time.monotonic(), backlog=self.line.backlog):
                if task.reports.dropped == 1:  # the sum comes with its end
                    self._report_dropped(task)
                continue
            with contextlib.suppress(ValueError):
                self._pass_on(task, parse_json_object(raw))

    def _report_dropped(self, task: Task) -> None:
        named = {"task": task.name, "attempt": task.attempt}
        self.line.say({"type": "reports_dropped", **named, "count": task.reports.dropped})

    def _pass_on(self, task: Task, event: dict[str, Any]) -> None:
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
                        self._report_stop(task, status)
                    else:
                        task.note_end(status, usage.ru_maxrss)
                        if task.was_killed_by_others:
                            task.oom = self._witness.evidence(pid, task.kills_before)
                        self._read_the_rest(task)

    def _report_stop(self, task: Task, status: int) -> None:
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
        task.drain_until = time.monotonic() + DRAIN_S
        for _ in ("what a full pipe holds", "its end"):
            self._outflow.drain(task)

    def _finish(self, task: Task) -> None:
        clear_group(task)
        self._unwatch(task)
        self._outflow.end(task)
        if task.reports.dropped > 1:
            self._report_dropped(task)
        del self._tasks[task.name]
        self._ended[task.name] = task.marks
        task.close()
        self._recorder.drop_group(task.pid)
        self.line.say(task.exited_message())

    def end_all(self, spare: Collection[int] = ()) -> None:
        """SIGKILL every group and every descendant outside of them but `spare`, reap, report.

        Whoever does not end within seconds is in uninterruptible sleep, and is left to the kernel.
        """
        now = time.monotonic()
        for task in self._tasks.values():
            kill(task, now)
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
                self._report_unkillable(task)

    def close(self) -> None:
        """Of a run that is over, in an agent that stays."""
        self._witness.close()

    def _report_unkillable(self, task: Task) -> None:
        task.is_unkillable, task.unkillable_at = True, None
        named = {"task": task.name, "attempt": task.attempt}
        self.line.say({"type": "unkillable", **named, "pids": [task.pid]})

    def _unwatch(self, task: Task) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(task.events)
