"""One task's process: its start in an own process group, its report budget, its state and stop."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import warnings  # noqa: F401 (os.execvpe wants it: once here, not in every fork)

from tfcluster.agent import budgets
from tfcluster.agent.budgets import Allowance
from tfcluster.agent.error_text import reason_of
from tfcluster.agent.processes import IS_LINUX, die_with_parent, give_back, signal_group, start_time
from tfcluster.agent.tasks.output import Log, LossReport, mask_of, open_pipe
from tfcluster.agent.tasks.stray_processes import marks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    Fork = Callable[[dict[str, Any], int, int], tuple[int, int]]


EVENTS_FD = "TFCLUSTER_EVENTS_FD"
MAX_EVENT = 64 << 10
_EVENT_SOCKET = socket.SOCK_SEQPACKET if IS_LINUX else socket.SOCK_DGRAM


class StartError(Exception):
    """The task's program could not be executed; the text says why."""


class Reports:
    """Which reports of one attempt are passed on: a task never waits, so those above its budget
    are dropped, and counted."""

    def __init__(self, now: float) -> None:
        self._count = Allowance(budgets.REPORTS_AT_ONCE, budgets.REPORTS_PER_S, now)
        self._bytes = Allowance(budgets.REPORT_BYTES_AT_ONCE, budgets.REPORT_BYTES_PER_S, now)
        self._reserve = Allowance(budgets.RESERVE_AT_ONCE, budgets.RESERVE_PER_S, now)
        self.dropped = 0

    def take(self, raw: bytes, now: float, *, backlog: int) -> bool:
        """Whether to pass it on. `backlog`: messages that no coordinator has acknowledged."""
        has_room = backlog <= budgets.BACKLOG
        if has_room and self._count.wait_s(now) <= 0 and self._bytes.wait_s(now) <= 0:
            self._count.spend(1, now)
            self._bytes.spend(len(raw), now)
            return True
        if _kind_of(raw) in _NEEDED and self._reserve.wait_s(now) <= 0:
            self._reserve.spend(1, now)
            return True
        self.dropped += 1
        return False


_NEEDED = frozenset(
    {b"error", b"verdict", b"saved", b"ready", b"waiting_for_peers", b"saves_on_sigterm"}
    | {b"evaluated", b"search_ended", b"setting_read", b"chaos", b"serving", b"saved_elsewhere"}
)
"""Kinds of reports on which it depends how the run goes on; all others are for people."""


def _kind_of(raw: bytes) -> bytes:
    """Without reading all of it."""
    words = raw[:200].partition(b'"type"')[2].split(b'"', 2)
    return words[1] if len(words) == 3 else b""


class Task:
    """A started task. It has ended when its pid has; its pipe may stay open a little longer."""

    def __init__(self, spec: dict[str, Any], attempt: int, fork: Fork) -> None:
        """Forks it, as `fork_and_exec` does: `spec` is one entry of a `start` message; `confirm`
        says how the exec went.

        Raises OSError when there can be no new process.
        """
        self.name: str = spec["task"]
        self.attempt = attempt
        self.marks = marks(spec.get("env", {}))
        self.stopping = False
        """Whether we are ending it, so that its end is not its own."""
        self.killed_by_order = False
        """Whether somebody had us send it SIGKILL."""
        self.kills_before: dict[str, int] = {}
        """Of its cgroups, at its start (`memory.Witness`)."""
        self.oom: str | None = None
        """Evidence that the kernel killed it for its memory."""
        self.kill_at: float | None = None
        self.unkillable_at: float | None = None
        """When it is to be told of as one that SIGKILL does not end."""
        self.is_unkillable = False
        self.reports = Reports(time.monotonic())
        self.usage: tuple[int, int] | None = None
        """Wait status and peak resident set in bytes, once its pid has ended."""
        self.drain_until = 0.0
        self.loss_report = LossReport()
        self.log = Log(spec["log"], mask_of(spec))
        self.log_begin = self.streamed = self.log.size
        """Offset up to which the log was sent to the coordinator; at first, where it begins."""
        self._start(spec, fork)

    def _start(self, spec: dict[str, Any], fork: Fork) -> None:
        self.pipe, write_end = open_pipe()
        ours, theirs = socket.socketpair(socket.AF_UNIX, _EVENT_SOCKET)
        ours.setblocking(False)
        self.events = ours
        try:
            self.pid, self._failure = fork(spec, write_end, theirs.fileno())
        except BaseException:
            self.close()
            raise
        finally:
            os.close(write_end)
            theirs.close()
        self.started_at = time.monotonic()
        self.start_time = start_time(self.pid)

    def confirm(self) -> None:
        """Wait until its program is running; raises StartError, and then nothing is left of it.

        Apart from the fork, so that the tasks of a gang come up side by side.
        """
        try:
            # End of file: the exec went well. Nothing is read before the program is running.
            words = os.read(self._failure, 4096)
        finally:
            os.close(self._failure)
        if words:
            os.waitpid(self.pid, 0)
            self.close()
            raise StartError(words.decode(errors="replace"))

    @property
    def stream_name(self) -> str:
        """What its log is called in `L` frames and in the hello's `log_offsets`."""
        return f"{self.name}/{self.attempt}"

    def signal_group(self, number: int) -> None:
        signal_group(self.pid, self.start_time, number)

    def exited_message(self) -> dict[str, Any]:
        status, peak_rss = self.usage or (0, 0)
        signaled = os.WIFSIGNALED(status)
        oom = {} if self.oom is None else {"oom": self.oom}
        return {
            "type": "task_exited",
            "task": self.name,
            "attempt": self.attempt,
            "exit_code": None if signaled else os.WEXITSTATUS(status),
            "signal": os.WTERMSIG(status) if signaled else None,
            "ended_by": "tfcluster" if self.stopping else "itself",
            "duration_s": round(self.ended_at - self.started_at, 3),
            "peak_rss_bytes": peak_rss,
            **oom,
        }

    @property
    def was_killed_by_others(self) -> bool:
        status = self.usage[0] if self.usage else 0
        ours = self.stopping or self.killed_by_order
        return not ours and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL

    def note_end(self, status: int, max_rss: int) -> None:
        """Its pid was reaped. `max_rss` as wait4 gives it: KiB on Linux, bytes on macOS."""
        self.ended_at = time.monotonic()
        self.usage = (status, max_rss * 1024 if IS_LINUX else max_rss)

    def close(self) -> None:
        self.log.close()
        self.events.close()
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1


def environment(spec: dict[str, Any]) -> dict[str, str]:
    """The agent's own environment (the node's), minus `unset`, plus `env`."""
    env = {**os.environ}
    for name in spec.get("unset", ()):
        env.pop(name, None)
    env.update(spec.get("env", {}))
    return env


def fork_and_exec(spec: dict[str, Any], output: int, events: int) -> tuple[int, int]:
    """Its pid, and a descriptor that yields why the exec failed, or nothing. Raises OSError."""
    agent = os.getpid()
    failed_read, failed_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        exec_or_report(spec, output, events, failed_write, agent)
    os.close(failed_write)
    return pid, failed_read


def exec_or_report(
    spec: dict[str, Any], output: int, events: int, failed: int, agent: int
) -> NoReturn:
    """In the child: become the task's program, or write to `failed` why that cannot be."""
    argv, cwd = spec["argv"], spec.get("cwd") or "/"
    try:
        env = environment(spec)
        env[EVENTS_FD] = str(events)
        _become(argv, env, cwd, spec.get("cores"), output, events, agent)
    except BaseException as error:  # the child must never return into the agent
        with contextlib.suppress(OSError):
            os.write(failed, _describe(error, argv, cwd).encode(errors="replace"))
    finally:
        os._exit(127)


def _become(
    argv: list[str],
    env: dict[str, str],
    cwd: str,
    cores: list[int] | None,
    output: int,
    events: int,
    agent: int,
) -> NoReturn:
    os.setpgid(0, 0)
    die_with_parent(agent)
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.set_inheritable(events, True)
    signal.set_wakeup_fd(-1)
    # Python ignores these, and an ignored signal stays ignored across an exec.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.chdir(cwd)
    give_back()  # last: until the exec all of the agent's files are open here
    os.execvpe(argv[0], argv, env)


def _describe(error: BaseException, argv: list[str], cwd: str) -> str:
    reason = reason_of(error)
    where = cwd if getattr(error, "filename", None) == cwd else argv[0]
    return f"{where}: {reason}"


UNKILLABLE_S = 5.0
"""A killed task that lives so long is told of; to give back much memory or a GPU takes seconds."""
DRAIN_S = 0.5
"""How long after its end a task's pipe is waited for: a grandchild may hold it."""


def request_stop(task: Task, grace_s: float) -> None:
    """First rung; asking again can only bring the second one nearer."""
    first = not task.stopping
    task.stopping = True
    kill_at = time.monotonic() + grace_s
    task.kill_at = kill_at if task.kill_at is None else min(task.kill_at, kill_at)
    if first and grace_s > 0:
        task.signal_group(signal.SIGTERM)
        task.signal_group(signal.SIGCONT)


def escalate(task: Task, now: float) -> None:
    """Second rung, once the grace is over; nothing for a task nobody asked to end."""
    if task.usage is None and task.kill_at is not None and now >= task.kill_at:
        kill(task, now)


def kill(task: Task, now: float) -> None:
    """SIGKILL to the group, which a stopped process obeys as well. One in uninterruptible sleep
    (a dead NFS server, a GPU driver) does not until it wakes: it is told of, not waited for."""
    task.stopping = True
    task.kill_at = None
    task.signal_group(signal.SIGKILL)
    if not task.is_unkillable:
        task.unkillable_at = now + UNKILLABLE_S


def clear_group(task: Task) -> None:
    """Last rung: what its own children left running in its group ends with it."""
    task.signal_group(signal.SIGKILL)
