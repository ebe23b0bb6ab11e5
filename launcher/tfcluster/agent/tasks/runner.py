"""The task runner: starts the tasks of one run on this node, follows and ends them."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Collection

from tfcluster.agent import Any
from tfcluster.agent import catalogue as msg
from tfcluster.agent.error_text import describe_error
from tfcluster.agent.foreign_json import parse_json_object
from tfcluster.agent.guard import Recorder
from tfcluster.agent.net.session import CoordinatorLink
from tfcluster.agent.node.limits import OomDetector
from tfcluster.agent.processes import catches, kill_descendants
from tfcluster.agent.tasks import stacks, stray_processes
from tfcluster.agent.tasks.host_network_spawner import PREPARE, HostNetworkSpawner
from tfcluster.agent.tasks.log_streaming import LogStreams
from tfcluster.agent.tasks.preloader import Preloader
from tfcluster.agent.tasks.task import DRAIN_S, MAX_EVENT, Fork, StartError, Task, fork_and_exec
from tfcluster.agent.tasks.usage_meter import UsageMeter

PROGRESS_BACKLOG = 1000
"""The unacknowledged messages from which on progress is dropped: newer progress replaces it."""
MAX_REPORTS = 1000
"""The reports read from one task per turn: more than its socket holds, so none waits for long."""
_END_S = 1.5
_ENDED_STOPPED_CONTINUED = os.WNOHANG | os.WUNTRACED | os.WCONTINUED


class TaskRunner:
    """The tasks of one run on this node; their starts, reports and ends are sent to the link."""

    link: CoordinatorLink

    def __init__(
        self,
        recorder: Recorder,
        selector: selectors.BaseSelector,
        host_spawner: HostNetworkSpawner | None,
        preloader: Preloader,
        log_streams: LogStreams,
    ) -> None:
        """Prepare; the caller sets `link` before the first task is started.

        `host_spawner` starts `prepare`, in attempt 0, where the tasks' network is private.
        """
        self._recorder, self._selector, self._host_spawner = recorder, selector, host_spawner
        self._preloader, self._log_streams = preloader, log_streams
        self._tasks: dict[str, Task] = {}
        self._oom_detector = OomDetector()
        self._usage_meter = UsageMeter()
        self._ended_marks: dict[str, frozenset[bytes]] = {}
        """Task → the marks of its last attempt's processes (`stray_processes.marks`)."""
        self._gang_started = 0
        """The start time of the gang's first task; 0: only `prepare` has run."""
        self.other_children: set[int] = set()
        """The agent's children that are neither tasks nor started by tasks."""

    def start_all(self, order: msg.Start) -> None:
        """Start tasks, after ending the processes that their earlier attempts left."""
        if order.attempt > 0 and self._host_spawner is not None:
            self._host_spawner.close()
        self._end_leftovers([task.task for task in order.tasks])
        forked = [self._fork(task, order.attempt) for task in order.tasks]
        for task in filter(None, forked):
            self._confirm(task)

    def _end_leftovers(self, names: list[str]) -> None:
        pids = {task.pid for task in self._tasks.values()}
        known = pids | self.other_children | {self._preloader.pid, self._usage_meter.child}
        tests = [
            stray_processes.carries(self._ended_marks.pop(name))
            for name in names
            if name in self._ended_marks
        ]
        if not self._tasks and self._gang_started:
            tests = [stray_processes.began_since(self._gang_started)]
        if tests:
            stuck = stray_processes.end(known, lambda pid: any(t(pid) for t in tests), self.reap)
            if stuck:
                self.link.send(msg.Unkillable(pids=stuck))

    def _fork(self, order: msg.TaskOrder, attempt: int) -> Task | None:
        try:
            if order.task in self._tasks:
                raise StartError("it is still running")
            task = Task(order, attempt, self._choose_fork(order, attempt))
        except (OSError, StartError) as error:
            why = describe_error(error)
            self.link.send(msg.StartFailed(task=order.task, attempt=attempt, error=why))
            return None
        self._recorder.add_group(task.pid, task.start_time)
        if not self._tasks and attempt > 0:
            self._gang_started = task.start_time
        self._tasks[task.name] = task
        return task

    def _choose_fork(self, order: msg.TaskOrder, attempt: int) -> Fork:
        if attempt == 0 and order.task == PREPARE and self._host_spawner is not None:
            return self._host_spawner.fork
        return self._preloader.fork if order.preload else fork_and_exec

    def _confirm(self, task: Task) -> None:
        try:
            task.confirm()
        except StartError as error:
            del self._tasks[task.name]
            self._recorder.drop_group(task.pid)
            why = str(error)
            self.link.send(msg.StartFailed(task=task.name, attempt=task.attempt, error=why))
            return
        task.kills_before = self._oom_detector.count_kills(task.pid)
        self._log_streams.begin(task)
        self._usage_meter.begin(task)
        read = selectors.EVENT_READ
        self._selector.register(task.events, read, lambda _events: self._read_reports(task))
        self.link.send(msg.TaskStarted(task=task.name, attempt=task.attempt, pid=task.pid))

    def stop(self, order: msg.Stop) -> None:
        for name in order.tasks:
            if name in self._tasks:
                self._tasks[name].request_stop(order.grace_s)

    def signal(self, order: msg.Signal) -> None:
        """Signal the tasks' own processes, not their children, which may not expect the signal."""
        for name in order.tasks:
            task = self._tasks.get(name)
            if task is not None and task.usage is None:
                task.killed_by_order = task.killed_by_order or order.signal == signal.SIGKILL
                with contextlib.suppress(ProcessLookupError):
                    os.kill(task.pid, order.signal)

    def take_stacks(self, order: msg.TakeStacks) -> None:
        """Have tasks write their stacks, and report these once they are in the logs."""
        now = time.monotonic()
        for task in filter(None, map(self._tasks.get, order.tasks)):
            if task.usage is not None or task.question is not None:
                continue
            if catches(task.pid, stacks.SIGNAL):
                self._log_streams.drain(task)
                task.question = stacks.Question(task.log, now)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(task.pid, stacks.SIGNAL)
            else:  # the signal would end it
                self._report_stacks(task, [], "it cannot write its stacks: it has no hooks yet")

    def _read_stacks(self, task: Task, now: float) -> None:
        """Report the stacks that a task was asked for, if they are complete."""
        if task.question is None or now < task.question.check_at:
            return
        self._log_streams.drain(task)
        if task.question.is_answered(now):
            threads, task.question = task.question.threads(), None
            self._report_stacks(task, threads, "" if threads else stacks.explain_silence(task.pid))

    def _report_stacks(self, task: Task, threads: list[msg.Thread], silence: str) -> None:
        report = msg.Stacks(task=task.name, attempt=task.attempt, threads=threads, silence=silence)
        self.link.send(report)

    # -- the clock

    def deadline(self) -> float | None:
        """Return the moment when `on_time` must be called next, or None."""
        at = [self._preloader.deadline, self._log_streams.pipes.pause_ends_at]
        at += [self._usage_meter.due_at]
        for task in self._tasks.values():
            ended = task.usage is not None
            at += [task.drain_until] if ended else [task.kill_at, task.unkillable_at]
            at += [task.question.check_at] if task.question is not None else []
        return min((when for when in at if when is not None), default=None)

    def on_time(self, now: float) -> None:
        self._preloader.on_time(now)
        self._log_streams.pipes.on_time(now)
        for task in list(self._tasks.values()):
            task.escalate_stop(now)
            self._read_stacks(task, now)
            if task.usage is None and task.unkillable_at is not None and now >= task.unkillable_at:
                self._report_unkillable(task)
            if task.usage is not None and now >= task.drain_until:
                self._finish(task)
        if self._usage_meter.due_at is not None and now >= self._usage_meter.due_at:
            self._report_usage()

    def _report_usage(self) -> None:
        report = self._usage_meter.sample(self._tasks.values())
        if report is not None and self.link.backlog <= PROGRESS_BACKLOG:
            self.link.send(report)

    # -- reports

    def _read_reports(self, task: Task) -> None:
        """Pass on a task's reports; drop malformed ones."""
        for _ in range(MAX_REPORTS):
            try:
                raw, fds, _flags, _address = socket.recv_fds(task.events, MAX_EVENT + 1, 1)
            except BlockingIOError:
                return
            except OSError:
                raw, fds = b"", []
            if fds:  # the message that brings them says nothing else
                for fd in fds:
                    task.last_step.take(fd)
                continue
            if not raw:
                self._unwatch(task)
                return
            if not task.reports.take(raw, time.monotonic(), backlog=self.link.backlog):
                if task.reports.dropped == 1:  # the total is reported when the task ends
                    self._report_dropped(task)
                continue
            with contextlib.suppress(ValueError):
                self._report_task_event(task, parse_json_object(raw))

    def _report_dropped(self, task: Task) -> None:
        count = task.reports.dropped
        self.link.send(msg.ReportsDropped(task=task.name, attempt=task.attempt, count=count))

    def _report_task_event(self, task: Task, event: dict[str, Any]) -> None:
        if event.get("type") == "progress":
            if self.link.backlog > PROGRESS_BACKLOG:
                return
            task.last_step.note_reported(event.get("step"))
        self.link.send(msg.TaskEvent(task=task.name, attempt=task.attempt, event=event))

    # -- ends

    def reap(self) -> None:
        """Reap every child that has ended: tasks, and processes that tasks left.

        Also note tasks that were stopped (SIGSTOP, a debugger) or continued.
        """
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
                        self._usage_meter.end(task)
                        if task.was_killed_by_others:
                            task.oom = self._oom_detector.evidence(pid, task.kills_before)
                        self._read_remaining(task)

    def _report_stop(self, task: Task, status: int) -> None:
        if task.stopping:
            return  # a task that is being stopped gets SIGCONT from the agent
        if os.WIFSTOPPED(status):
            number = os.WSTOPSIG(status)
            self.link.send(msg.TaskStopped(task=task.name, attempt=task.attempt, signal=number))
        else:
            self.link.send(msg.TaskContinued(task=task.name, attempt=task.attempt))

    def _read_remaining(self, task: Task) -> None:
        self._read_reports(task)
        if (step := task.last_step.unreported()) is not None:  # it was killed, or it crashed
            self._report_task_event(task, {"type": "progress", "step": step})
        task.drain_until = time.monotonic() + DRAIN_S  # for a child of the task that still writes
        for _ in range(2):  # a full pipe, then its end
            self._log_streams.drain(task)

    def _finish(self, task: Task) -> None:
        task.signal_group(signal.SIGKILL)  # what the task left running in its group
        self._unwatch(task)
        task.question = None  # its end is the answer
        self._log_streams.end(task)
        if task.reports.dropped > 1:
            self._report_dropped(task)
        del self._tasks[task.name]
        self._ended_marks[task.name] = task.marks
        task.close()
        self._recorder.drop_group(task.pid)
        self.link.send(task.exit_report())

    def end_all(self, spare: Collection[int] = ()) -> None:
        """SIGKILL every group, and every other descendant but `spare`; reap and report the tasks.

        A process that does not end within seconds is in uninterruptible sleep and is left behind.
        """
        now = time.monotonic()
        for task in self._tasks.values():
            task.force_stop(now)
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
        """Close what this run opened, in an agent that stays for the next one."""
        self._oom_detector.close()
        self._usage_meter.close()

    def _report_unkillable(self, task: Task) -> None:
        task.is_unkillable, task.unkillable_at = True, None
        self.link.send(msg.Unkillable(task=task.name, attempt=task.attempt, pids=[task.pid]))

    def _unwatch(self, task: Task) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(task.events)
