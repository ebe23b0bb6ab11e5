"""One task's process: its start in an own process group, its report budget, its state and stop."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import warnings  # noqa: F401 (os.execvpe imports it: better once here than in every fork)
from collections.abc import Callable

from tfcluster.agent import Any, NoReturn, budgets
from tfcluster.agent import catalogue as msg
from tfcluster.agent.budgets import Allowance
from tfcluster.agent.error_text import reason_of
from tfcluster.agent.processes import (
    IS_LINUX,
    die_with_parent,
    discard_streams,
    restore_limit,
    signal_group,
    start_time,
)
from tfcluster.agent.tasks import stacks
from tfcluster.agent.tasks.children import Child
from tfcluster.agent.tasks.last_step import LastStep
from tfcluster.agent.tasks.output import OutputFile, mask_of, open_pipe
from tfcluster.agent.tasks.stray_processes import marks

Fork = Callable[[msg.TaskOrder, int, int], tuple[int, int]]

EVENTS_FD = "TFCLUSTER_EVENTS_FD"
EVENTS_SOCKET = "TFCLUSTER_EVENTS_SOCKET"
"""The path of the agent's socket for the children of its tasks (`ChildSocket`)."""
MAX_EVENT = 64 << 10
_BOOT = "/tfcluster_workers/boot.py"
_EVENT_SOCKET = socket.SOCK_SEQPACKET if IS_LINUX else socket.SOCK_DGRAM
UNKILLABLE_S = 5.0
"""The time after SIGKILL from which on a living task is reported as unkillable: to free much memory
or a GPU takes seconds."""
DRAIN_S = 0.5
"""The time that an ended task's pipe is still read: a child of the task may hold it."""
_CHILD_KILLED = (128 + signal.SIGKILL, 256 - signal.SIGKILL)
"""The exit codes of a shell, and of a Python script that passes on its child's returncode."""
_DECISIVE = {
    kind.type.encode() for kind in msg.TaskReport.__subclasses__() if kind not in msg.FOR_PEOPLE
}
"""The types of reports for which there is reserved room."""


class StartError(Exception):
    """The task's program could not be executed; the text is the reason."""


class ReportBudget:
    """The budget for one attempt's reports; a task never waits, so excess reports are dropped."""

    def __init__(self, now: float) -> None:
        self._count = Allowance(budgets.REPORTS_AT_ONCE, budgets.REPORTS_PER_S, now)
        self._bytes = Allowance(budgets.REPORT_BYTES_AT_ONCE, budgets.REPORT_BYTES_PER_S, now)
        self._reserve = Allowance(budgets.RESERVE_AT_ONCE, budgets.RESERVE_PER_S, now)
        self.dropped = 0

    def take(self, raw: bytes, now: float, *, backlog: int) -> bool:
        """Return whether to pass a report on; `backlog`: the unacknowledged messages."""
        has_room = backlog <= budgets.BACKLOG
        if has_room and self._count.wait_s(now) <= 0 and self._bytes.wait_s(now) <= 0:
            self._count.spend(1, now)
            self._bytes.spend(len(raw), now)
            return True
        if _kind_of(raw) in _DECISIVE and self._reserve.wait_s(now) <= 0:
            self._reserve.spend(1, now)
            return True
        self.dropped += 1
        return False


def _kind_of(raw: bytes) -> bytes:
    """Return a report's type without parsing the report."""
    reason = raw[:200].partition(b'"type"')[2].split(b'"', 2)
    return reason[1] if len(reason) == 3 else b""


class Task:
    """A started task. It ends when its pid ends; its pipe may stay open a little longer."""

    def __init__(self, order: msg.TaskOrder, attempt: int, fork: Fork) -> None:
        """Fork the task's process.

        `fork` is `fork_and_exec` or has the same contract; `confirm` then waits for the exec.
        Raises OSError if no process can be created.
        """
        self.order, self.name, self.attempt = order, order.task, attempt
        self.marks = marks(order.env)
        variables = environment(order)
        self.gpus = variables.get("CUDA_VISIBLE_DEVICES")
        """The GPUs that it may use, as CUDA reads them; None: all."""
        self.begins_with_hooks = any(word.endswith(_BOOT) for word in order.argv)
        self.has_reported_hooks = False
        """True once they have reported, where the process's handlers of signals cannot be seen."""
        self.gpu_order = variables.get("CUDA_DEVICE_ORDER")
        self.stopping = False
        """True if tfcluster is ending the task, so that it did not end by itself."""
        self.killed_by_order = False
        """True if the coordinator ordered SIGKILL for the task."""
        self.kills_before: dict[str, int] = {}
        """The kills in its cgroups at its start (`limits.OomDetector`)."""
        self.oom: str | None = None
        """The evidence for an out-of-memory kill."""
        self.kill_at: float | None = None
        self.unkillable_at: float | None = None
        """The moment from which on the task is reported as unkillable."""
        self.is_unkillable = False
        self.reports = ReportBudget(time.monotonic())
        self.last_step = LastStep()
        self.has_trained = False
        """True once its own process has reported training, and is still the same program."""
        self.child: Child | None = None
        """The child whose reports count as the task's."""
        self.trainer = 0
        """The pid of the child that was accepted last; 0 if none was."""
        self.child_error: dict[str, Any] | None = None
        """The exception that ended a child. The task may go on."""
        self.has_child_failed = False
        """True if that exception ended the training."""
        self.hooked: set[int] = set()
        """The pids below it that have said hello."""
        self.has_unhooked_child = False
        """True once it was reported that it may train in a child without hooks."""
        self.question: stacks.StacksQuestion | None = None
        """The request for its stacks that it has not answered yet."""
        self.usage: tuple[int, int] | None = None
        """The wait status and the peak resident set in bytes, once its pid has ended."""
        self.drain_until = 0.0
        self.log = OutputFile(order.log, mask_of(order))
        self.log_begin = self.streamed = self.log.size
        """The offset up to which the log was sent to the coordinator; first, where it begins."""
        self._start(order, fork)

    def last_steps(self) -> list[LastStep]:
        """Return the last steps of its own process and of the child that trains in its place."""
        return [self.last_step, *([self.child.last_step] if self.child is not None else [])]

    def _start(self, order: msg.TaskOrder, fork: Fork) -> None:
        self.pipe, write_end = open_pipe()
        self.events, theirs = socket.socketpair(socket.AF_UNIX, _EVENT_SOCKET)
        self.events.setblocking(False)
        if not IS_LINUX:  # macOS: a message must fit into both buffers, which have 2 and 4 KiB
            for end in (self.events, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MAX_EVENT)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * MAX_EVENT)
        try:
            self.pid, self._failure = fork(order, write_end, theirs.fileno())
        except BaseException:
            self.close()
            raise
        finally:
            os.close(write_end)
            theirs.close()
        self.started_at = time.monotonic()
        self.start_time = start_time(self.pid)

    def confirm(self) -> None:
        """Wait until the program runs. Raises StartError after cleaning up.

        It is separate from the fork, so that the tasks of a gang start in parallel.
        """
        try:
            # End of file: the exec succeeded. Nothing else is read before the program runs.
            reason = os.read(self._failure, 4096)
        finally:
            os.close(self._failure)
        if reason:
            os.waitpid(self.pid, 0)
            self.close()
            raise StartError(reason.decode(errors="replace"))

    @property
    def training_pid(self) -> int:
        """The process whose reports count: its child, or its own."""
        return self.pid if self.child is None else self.child.pid

    def masked(self, text: str) -> str:
        """Return `text` without the values of the task's secrets."""
        mask = mask_of(self.order)
        if mask is None:
            return text
        whole = text.encode("utf-8", "surrogateescape")
        return (mask.apply(whole) + mask.flush()).decode(errors="replace")

    @property
    def stream_name(self) -> str:
        """The log's name in `L` frames and in the hello's `log_offsets`."""
        return f"{self.name}/{self.attempt}"

    def signal_group(self, number: int) -> None:
        signal_group(self.pid, self.start_time, number)

    def exit_report(self) -> msg.TaskExited:
        status, peak_rss = self.usage or (0, 0)
        signaled = os.WIFSIGNALED(status)
        return msg.TaskExited(
            task=self.name,
            attempt=self.attempt,
            exit_code=None if signaled else os.WEXITSTATUS(status),
            signal=os.WTERMSIG(status) if signaled else None,
            ended_by="tfcluster" if self.stopping else "itself",
            duration_s=round(self.ended_at - self.started_at, 3),
            peak_rss_bytes=peak_rss,
            out_of_memory=self.oom,
        )

    @property
    def was_killed_by_others(self) -> bool:
        """Return whether something other than tfcluster ended it, or its child, with SIGKILL."""
        if self.stopping or self.killed_by_order or self.usage is None:
            return False
        status = self.usage[0]
        if os.WIFSIGNALED(status):
            return os.WTERMSIG(status) == signal.SIGKILL
        return os.WEXITSTATUS(status) in _CHILD_KILLED

    def note_end(self, status: int, max_rss: int) -> None:
        """Record the end of the pid. `max_rss` is wait4's: KiB on Linux, bytes on macOS."""
        self.ended_at = time.monotonic()
        self.usage = (status, max_rss * 1024 if IS_LINUX else max_rss)

    def request_stop(self, grace_s: float) -> None:
        """Send SIGTERM to the group, and SIGKILL after `grace_s`, or earlier by another request."""
        first = not self.stopping
        self.stopping = True
        kill_at = time.monotonic() + grace_s
        self.kill_at = kill_at if self.kill_at is None else min(self.kill_at, kill_at)
        self.drain_until = min(self.drain_until, kill_at)  # if only a child of it still runs
        if first and grace_s > 0:
            self.signal_group(signal.SIGTERM)
            self.signal_group(signal.SIGCONT)

    def escalate_stop(self, now: float) -> None:
        """Send SIGKILL once the grace of a requested stop is over."""
        if self.usage is None and self.kill_at is not None and now >= self.kill_at:
            self.force_stop(now)

    def force_stop(self, now: float) -> None:
        """Send SIGKILL to the group, which ends stopped processes too.

        A process in uninterruptible sleep (a dead NFS server, a GPU driver) does not end until it
        wakes: it is reported, not waited for.
        """
        self.stopping = True
        self.kill_at = None
        self.signal_group(signal.SIGKILL)
        if not self.is_unkillable:
            self.unkillable_at = now + UNKILLABLE_S

    def close(self) -> None:
        self.log.close()
        self.events.close()
        if self.child is not None:
            self.child.close()
        self.last_step.close()
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1


def environment(process: msg.Process) -> dict[str, str]:
    """Return the agent's environment (the node's) without `unset`, plus `env`."""
    kept = {name: value for name, value in os.environ.items() if name not in process.unset}
    return {**kept, **process.env}


def fork_and_exec(process: msg.Process, output: int, events: int) -> tuple[int, int]:
    """Fork and execute a task's program. Raises OSError.

    Return the pid and a descriptor that yields why the exec failed, or nothing.
    """
    agent = os.getpid()
    failed_read, failed_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        become_task(process, output, events, failed_write, agent)
    os.close(failed_write)
    return pid, failed_read


def become_task(
    process: msg.Process, output: int, events: int, failed: int, agent: int
) -> NoReturn:
    """Execute the task's program in this child; write the reason to `failed` if it fails."""

    def connect() -> dict[str, str]:
        os.setpgid(0, 0)
        discard_streams(0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.set_inheritable(events, True)
        return {EVENTS_FD: str(events)}

    exec_or_report(process, connect, failed, agent)


def exec_or_report(
    process: msg.Process, connect: Callable[[], dict[str, str]], failed: int, agent: int
) -> NoReturn:
    """Execute a program in this child; write the reason to `failed` if it fails.

    `connect` makes its process group, connects its streams, and returns variables for it.
    """
    argv, cwd = list(process.argv), process.cwd or "/"
    try:
        env = {**environment(process), **connect()}
        die_with_parent(agent)
        if process.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, process.cores)
        signal.set_wakeup_fd(-1)
        # Python ignores these signals, and an ignored signal stays ignored after an exec.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(cwd)
        restore_limit()  # last: until the exec all of the agent's files are open in this process
        os.execvpe(argv[0], argv, env)
    except BaseException as error:  # the child must never return into the agent
        where = cwd if getattr(error, "filename", None) == cwd else argv[0]
        with contextlib.suppress(OSError):
            os.write(failed, f"{where}: {reason_of(error)}".encode(errors="replace"))
    finally:
        os._exit(127)
