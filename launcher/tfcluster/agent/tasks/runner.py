"""The task runner: starts the tasks of one run on this node, follows and ends them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import socket
import time
from collections.abc import Callable, Collection

from tfcluster.agent import Any
from tfcluster.agent import catalogue as msg
from tfcluster.agent.error_text import describe_error
from tfcluster.agent.foreign_json import parse_json_object
from tfcluster.agent.guard import Recorder
from tfcluster.agent.message_fields import replace
from tfcluster.agent.net.coordinator_link import CoordinatorLink
from tfcluster.agent.node.limits import OomDetector
from tfcluster.agent.processes import IS_LINUX, catches, kill_descendants, signal_group
from tfcluster.agent.tasks import stacks, stray_processes
from tfcluster.agent.tasks.children import Child, ChildSocket, belongs_to, find_unhooked
from tfcluster.agent.tasks.host_network_spawner import HostNetworkSpawner
from tfcluster.agent.tasks.last_step import HELD_S, LastStep
from tfcluster.agent.tasks.log_streaming import LogStreams
from tfcluster.agent.tasks.preloader import Preloader
from tfcluster.agent.tasks.task import (
    DRAIN_S,
    EVENTS_SOCKET,
    MAX_EVENT,
    Fork,
    StartError,
    Task,
    fork_and_exec,
)
from tfcluster.agent.tasks.usage_meter import UsageMeter, node_load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tfcluster.agent.tasks.exec_processes import ExecProcesses

PROGRESS_BACKLOG = 1000
"""The unacknowledged messages from which on progress is dropped: newer progress replaces it."""
MAX_REPORTS = 1000
"""The reports read from one task per turn: more than its socket holds, so none waits for long."""
UNHOOKED_S = 60.0
"""The time from a task's start in which children without hooks are looked for."""
_END_S = 1.5
_TRAINS = ("waiting_for_peers", "task_ready", "serving", "trains", "progress", "evaluated", "trial")
"""The events by which a process proves that it trains."""
_CHILD_FAILED = "subprocess.CalledProcessError"
"""The exception of a task that is only the consequence of its child's."""
_REQUEST = ("id", "file", "first", "steps", "delay_s", "seconds")
"""The fields of `TraceSteps` that the task gets (`tfcluster_workers.profiling.Request`)."""
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
        *,
        children: str,
    ) -> None:
        """Prepare; the caller sets `link` before the first task is started.

        `host_spawner` starts `prepare`, in attempt 0, where the tasks' network is private.
        `children`: the path of the socket for the tasks' children.
        """
        self._recorder, self._selector, self._host_spawner = recorder, selector, host_spawner
        self._preloader, self._log_streams = preloader, log_streams
        self._children = ChildSocket(children, recorder, selector, self._on_hello)
        self._tasks: dict[str, Task] = {}
        self._oom_detector = OomDetector()
        self._usage_meter = UsageMeter()
        self._ended_marks: dict[str, frozenset[bytes]] = {}
        """Task → the marks of its last attempt's processes (`stray_processes.marks`)."""
        self._gang_started = 0
        """The start time of the gang's first task; 0: only `prepare` has run."""
        self._is_held, self._held_back = False, list[msg.Start]()
        self._execs: ExecProcesses | None = None
        """The commands beside the tasks, once one was ordered."""
        self.other_children: set[int] = set()
        """The agent's children that are neither tasks nor started by tasks."""

    def start_all(self, order: msg.Start) -> None:
        """Start tasks, after ending the processes that their earlier attempts left.

        While it is in doubt whether the coordinator still counts on this agent, the order waits.
        """
        if self.link.is_in_doubt:
            self._held_back.append(order)
            return
        if order.attempt > 0 and self._host_spawner is not None:
            self._host_spawner.close()
        self._end_leftovers([task.task for task in order.tasks])
        forked = [self._fork(task, order) for task in order.tasks]
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

    def _fork(self, order: msg.TaskOrder, start: msg.Start) -> Task | None:
        attempt = start.attempt
        try:
            if order.task in self._tasks:
                raise StartError("it is still running")
            if attempt > 0:
                env = {**order.env, EVENTS_SOCKET: self._children.open()}
                if order.place is not None:
                    cluster = {**start.cluster, **order.place["cluster"]}
                    env["TF_CONFIG"] = json.dumps({**order.place, "cluster": cluster})
                order = replace(order, env=env)
            fork: Fork = self._preloader.fork if order.preload else fork_and_exec
            if attempt == 0 and order.task == msg.PREPARE and self._host_spawner is not None:
                fork = self._host_spawner.fork
            task = Task(order, attempt, fork)
        except (OSError, StartError) as error:
            why = describe_error(error)
            self.link.send(msg.StartFailed(task=order.task, attempt=attempt, error=why))
            return None
        self._recorder.add_group(task.pid, task.start_time)
        if not self._tasks and attempt > 0:
            self._gang_started = task.start_time
        self._tasks[task.name] = task
        return task

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
        self._selector.register(task.events, read, lambda _events: self._read_own(task))
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

    def hold(self, is_held: bool) -> None:
        """Stop all tasks, or let them go on, if they are not in that state already."""
        if is_held != self._is_held:
            self._is_held, number = is_held, signal.SIGSTOP if is_held else signal.SIGCONT
            for task in self._tasks.values():
                if task.usage is None:
                    signal_group(task.pid, task.start_time, number)
        while self._held_back and not is_held:
            self.start_all(self._held_back.pop(0))

    def take_stacks(self, order: msg.TakeStacks) -> None:
        """Have tasks write their stacks, and report these once they are in the logs."""
        now = time.monotonic()
        for task in filter(None, map(self._tasks.get, order.tasks)):
            if task.usage is not None or task.question is not None:
                continue
            if task.has_reported_hooks or catches(task.training_pid, stacks.SIGNAL):
                self._log_streams.drain(task)
                task.question = stacks.StacksQuestion(task.log, now)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(task.training_pid, stacks.SIGNAL)
            else:  # the signal would end it
                self._report_stacks(task, [], "it cannot write its stacks: it has no hooks (yet)")

    def _read_stacks(self, task: Task, now: float) -> None:
        """Report the stacks that a task was asked for, if they are complete."""
        if task.question is None or now < task.question.check_at:
            return
        self._log_streams.drain(task)
        if task.question.is_answered(now):
            threads, task.question = task.question.threads(), None
            silence = "" if threads else stacks.explain_silence(task.training_pid)
            self._report_stacks(task, threads, silence)

    def _report_stacks(self, task: Task, threads: list[msg.Thread], silence: str) -> None:
        self.link.send(
            msg.Stacks(
                task=task.name,
                attempt=task.attempt,
                threads=threads,
                silence=silence,
                load=node_load(),
            )
        )

    def trace_steps(self, order: msg.TraceSteps) -> None:
        """Pass on a request to the process of a task that trains, which looks for it at a step."""
        task = self._tasks.get(order.task)
        if task is None or task.usage is not None:
            return  # its end is the answer
        source = task.events if task.child is None else task.child.socket
        request = {name: value for name, value in vars(order).items() if name in _REQUEST}
        request["until"] = time.monotonic() + order.within_s
        try:
            source.send(json.dumps(request).encode(), socket.MSG_DONTWAIT)
        except ConnectionError:
            return  # it is ending
        except OSError as error:
            why = f"it cannot be asked: {describe_error(error)}"
            event = {"type": "profiled", "id": order.id, "problem": why}
            self._report_task_event(task, event)

    # -- commands beside tasks

    def begin_exec(self, order: msg.Exec) -> None:
        if self._execs is None:
            from tfcluster.agent.tasks.exec_processes import ExecProcesses

            self._execs = ExecProcesses(self._recorder, self._selector, self.link)
        task = self._tasks.get(order.task)
        self._execs.start(order, task if task is not None and task.usage is None else None)

    def end_exec(self, order: msg.EndExec) -> None:
        if self._execs is not None:
            self._execs.end(order.id)

    def take_exec(self, name: str, offset: int, data: bytes) -> None:
        """Take an `X` frame."""
        if self._execs is not None:
            self._execs.take(name, offset, data)

    def end_all_execs(self) -> None:
        if self._execs is not None:
            self._execs.end_all()

    # -- the clock

    def deadline(self) -> float | None:
        """Return the moment when `on_time` must be called next, or None."""
        at = [self._preloader.deadline, self._log_streams.pipes.pause_ends_at]
        at += [self._usage_meter.due_at]
        for task in self._tasks.values():
            ended = task.usage is not None
            at += [task.drain_until] if ended else [task.kill_at, task.unkillable_at]
            at += [task.question.check_at] if task.question is not None else []
            at += [last_step.check_at for last_step in task.last_steps()]
        return min((when for when in at if when is not None), default=None)

    def on_time(self, now: float) -> None:
        self._preloader.on_time(now)
        if self._execs is not None:
            self._execs.finish_ended(self.reap)
        self._log_streams.pipes.on_time(now)
        for task in list(self._tasks.values()):
            task.escalate_stop(now)
            self._read_stacks(task, now)
            for last_step in task.last_steps():
                if last_step.check_at is not None and now >= last_step.check_at:
                    last_step.check_at = None
                    self._report_last_step(task, last_step)
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
        for task in self._tasks.values():
            self._find_unhooked(task)

    def _find_unhooked(self, task: Task) -> None:
        """Report once that a young task which reports nothing seems to train in a child."""
        is_known = task.has_trained or task.trainer or task.has_unhooked_child
        if is_known or not _is_new(task) or task.attempt == 0 or task.usage is not None:
            return
        if command := find_unhooked(task.pid, task.hooked):
            task.has_unhooked_child = True
            event = {"type": "trains_in_child", "command": task.masked(command)}
            self._report_task_event(task, event)

    # -- reports

    def _read_own(self, task: Task) -> None:
        """Pass on the reports of a task's own process."""
        if not self._read_reports(task, task.events, task.last_step, self._on_own_event):
            self._unwatch(task.events)

    def _read_reports(
        self,
        task: Task,
        source: socket.socket,
        last_step: LastStep,
        pass_on: Callable[[Task, dict[str, Any]], None],
    ) -> bool:
        """Read the reports that wait in a socket, drop malformed ones; return False at its end."""
        for _ in range(MAX_REPORTS):
            try:
                raw, fds, _flags, _address = socket.recv_fds(source, MAX_EVENT + 1, 1)
            except BlockingIOError:
                return True
            except OSError:
                raw, fds = b"", []
            if fds:  # the message that brings them says nothing else
                for fd in fds:
                    last_step.take(fd)
                continue
            if not raw:
                if _has_ended(source):
                    return False
                continue  # an empty packet
            if self._has_room(task, raw):
                with contextlib.suppress(ValueError):
                    event = parse_json_object(raw)
                    if event.get("type") == "progress":
                        if self.link.backlog > PROGRESS_BACKLOG:
                            continue
                        check_at = time.monotonic() + HELD_S
                        last_step.note_reported(event.get("step"), check_at=check_at)
                    pass_on(task, event)
        return True

    def _has_room(self, task: Task, raw: bytes) -> bool:
        """Return whether the task's budget allows another report; note those that it does not."""
        if task.reports.take(raw, time.monotonic(), backlog=self.link.backlog):
            return True
        if task.reports.dropped == 1:  # the total is reported when the task ends
            self._report_dropped(task)
        return False

    def _report_dropped(self, task: Task) -> None:
        count = task.reports.dropped
        self.link.send(msg.ReportsDropped(task=task.name, attempt=task.attempt, count=count))

    def _report_task_event(self, task: Task, event: dict[str, Any]) -> None:
        self.link.send(msg.TaskEvent(task=task.name, attempt=task.attempt, event=event))

    def _report_last_step(self, task: Task, last_step: LastStep) -> None:
        """Report the last step of a process that did not: it was killed, or it holds it back."""
        if (step := last_step.unreported()) is not None:
            last_step.note_reported(step)
            self._report_task_event(task, {"type": "progress", "step": step})

    def _report_unfinished_fit(self, task: Task, last_step: LastStep) -> None:
        """Report that a process which has ended was inside of `fit`: `os._exit`, or a signal."""
        if last_step.is_in_fit():
            self._report_task_event(task, {"type": "doubt", "about": "fit"})

    # -- children that train in a task's place

    def _on_hello(self, peer: socket.socket, pid: int, raw: bytes) -> None:
        """Act on a child's hello. Raises OSError, ValueError."""
        hello = parse_json_object(raw)
        task = self._tasks.get(str(hello.get("task")))
        if task is None or hello.get("attempt") != str(task.attempt):
            raise ValueError("it names no running task")
        if not belongs_to(pid, task.pid, task.marks):
            raise ValueError("it is not below that task")
        if _is_new(task):
            task.hooked.add(pid)
        if pid == task.pid:  # it has become another program (exec)
            self._report_last_step(task, task.last_step)
            task.last_step.close()
            task.has_trained = False
        is_refused = task.has_trained or task.child is not None
        event = hello.get("event")
        is_event = isinstance(event, dict) and event.get("type") in ("task_phase", "task_error")
        if is_event and not is_refused and self._has_room(task, raw):
            self._note_child_event(task, event)
        if is_refused or task.usage is not None or hello.get("claims") is not True:
            peer.close()
        else:
            child = Child(peer, pid)
            child.accept(task.pipe)
            task.child, task.trainer = child, pid
            task.child_error, task.has_child_failed = None, False
            self._selector.register(
                peer, selectors.EVENT_READ, lambda _events: self._read_child(task, child)
            )

    def _read_child(self, task: Task, child: Child) -> None:
        if not self._read_reports(task, child.socket, child.last_step, self._on_child_event):
            self._report_unfinished_fit(task, child.last_step)
            self._drop_child(task)

    def _drop_child(self, task: Task) -> None:
        """Note that a task's child has ended, or that it does not count any more."""
        if task.child is None:
            return
        self._unwatch(task.child.socket)
        self._report_last_step(task, task.child.last_step)
        task.child.close()
        task.child = None
        if task.usage is not None:  # it was all that the task's end waited for
            task.drain_until = time.monotonic() + DRAIN_S

    def _on_child_event(self, task: Task, event: dict[str, Any]) -> None:
        """Pass on an event of the child that trains."""
        task.has_child_failed |= event.get("type") == "task_error"
        self._note_child_event(task, event)

    def _note_child_event(self, task: Task, event: Any) -> None:
        """Pass on an event of a child; keep its error, with which the task may still succeed."""
        if event.get("type") == "task_error":
            task.child_error = event
        else:
            self._report_task_event(task, event)

    def _on_own_event(self, task: Task, event: dict[str, Any]) -> None:
        """Pass on an event of a task's own process, which comes before its children."""
        kind = event.get("type")
        if kind in _TRAINS and not task.has_trained:
            self._read_children(task)
            task.has_trained, task.child_error = True, None
            self._drop_child(task)
        elif kind == "task_error":
            self._read_children(task)  # its error was sent before, on another socket
            if task.child_error is not None and event.get("exception") == _CHILD_FAILED:
                event = task.child_error
            task.child_error = None
        task.has_reported_hooks = not IS_LINUX and task.begins_with_hooks
        self._report_task_event(task, event)

    def _read_children(self, task: Task) -> None:
        """Read what the children of a task have sent."""
        self._children.read()
        if task.child is not None:
            self._read_child(task, task.child)

    def _report_child_error(self, task: Task) -> None:
        """Report the exception of a task's child if the task failed, too; else note it."""
        error, task.child_error = task.child_error, None
        status = task.usage[0] if task.usage is not None else 0
        if error is not None and status != 0:
            self._report_task_event(task, error)
        elif error is not None and task.has_child_failed:
            self._report_task_event(task, {**error, "type": "doubt", "about": "child"})

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
                            killed = task.trainer or pid
                            task.oom = self._oom_detector.evidence(killed, task.kills_before)
                        self._read_remaining(task)
            if self._execs is not None:
                self._execs.note_end(pid, status)

    def _report_stop(self, task: Task, status: int) -> None:
        if task.stopping:
            return  # a task that is being stopped gets SIGCONT from the agent
        if os.WIFSTOPPED(status):
            number = os.WSTOPSIG(status)
            self.link.send(msg.TaskFrozen(task=task.name, attempt=task.attempt, signal=number))
        else:
            self.link.send(msg.TaskThawed(task=task.name, attempt=task.attempt))

    def _read_remaining(self, task: Task) -> None:
        self._read_own(task)
        self._read_children(task)
        self._report_child_error(task)
        self._report_last_step(task, task.last_step)
        self._report_unfinished_fit(task, task.last_step)
        task.drain_until = time.monotonic() + DRAIN_S  # for a child of the task that still writes
        if task.child is not None and task.kill_at is not None:
            task.drain_until = max(task.drain_until, task.kill_at)  # it may still save its state
        for _ in range(2):  # a full pipe, then its end
            self._log_streams.drain(task)

    def _finish(self, task: Task) -> None:
        task.signal_group(signal.SIGKILL)  # what the task left running in its group
        self._unwatch(task.events)
        if task.child is not None:  # which trains, and has not ended
            if task.usage is not None and task.usage[0] == 0 and not task.stopping:
                note = "it ended with exit code 0 before its child process, which trains, had ended"
                self._report_task_event(task, {"type": "note", "message": note})
            self._drop_child(task)
        task.question = None  # its end is the answer
        self._log_streams.end(task)
        if task.reports.dropped > 1:
            self._report_dropped(task)
        del self._tasks[task.name]
        self._ended_marks[task.name] = task.marks
        task.close()
        self._recorder.drop_group(task.pid)
        if self._execs is not None:
            self._execs.end_of_task(task.name)
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
        if self._execs is not None:
            self._execs.finish_all(self.reap)

    def close(self) -> None:
        """Close what this run opened, in an agent that stays for the next one."""
        self._oom_detector.close()
        self._usage_meter.close()
        self._children.close()

    def _report_unkillable(self, task: Task) -> None:
        task.is_unkillable, task.unkillable_at = True, None
        self.link.send(msg.Unkillable(task=task.name, attempt=task.attempt, pids=[task.pid]))

    def _unwatch(self, source: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(source)


def _has_ended(source: socket.socket) -> bool:
    """Return whether nothing will follow what was read: an empty packet is no end."""
    poll = select.poll()
    poll.register(source, 0)
    return bool(poll.poll(0))  # POLLHUP or an error, which are always reported


def _is_new(task: Task) -> bool:
    """Return whether children without hooks are still looked for."""
    return time.monotonic() <= task.started_at + UNHOOKED_S
