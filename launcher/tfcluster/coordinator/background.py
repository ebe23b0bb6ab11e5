"""A coordinator in a process of its own, and the socket between it and its starter.

It is that of ``up -d``, and of a run at a terminal: the starter, which the shell waits for, only
shows that run and passes signals on, so that the user can leave it (the key d). A process cannot
leave its shell by itself, and a fork of a running coordinator would lose its agents, which are its
children. The end of the starter, the terminal's among others, stops a run that was not left.

The process is a fork of a starter without threads, so nothing is imported twice. A starter with
threads, such as a notebook's kernel, starts a new Python: a fork might inherit a locked lock. The
socket carries pickled values, which only this user's own process writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from tfcluster.coordinator.coordinator import Coordinator
from tfcluster.coordinator.foreground import RunSession, find_interrupted, stop_by
from tfcluster.coordinator.launch import (
    END_ANNOUNCED,
    HELD_BACK,
    End,
    Launch,
    Watcher,
    signals_held_back,
)
from tfcluster.errors import NodeLostError, TfclusterError
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.rundir.events import Event
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import ProcessIdentity, this_process
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.states import Status

_STARTED, _LEFT = "started", "left"
_SPAWN = (
    "import sys; sys.path.append(sys.argv[1]);"
    " from tfcluster.coordinator.background import serve_spawned; serve_spawned(int(sys.argv[2]))"
)


@dataclass(slots=True)
class Background:
    """The background process, as its starter sees it."""

    identity: ProcessIdentity
    _socket: socket.socket
    _received: BinaryIO
    """The file that reads from the socket."""
    was_signalled: bool = False
    """True if a signal to the starter was passed on."""

    def messages(self) -> Iterator[Any]:
        """Yield what the process sends, until it closes its end; raise errors it sends."""
        with self._socket, self._received, contextlib.suppress(EOFError, pickle.UnpicklingError):
            while True:
                message = pickle.load(self._received)
                if isinstance(message, TfclusterError):
                    raise message
                yield message

    def leave(self) -> None:
        """Have the run go on without its starter; the process answers `_LEFT`."""
        with contextlib.suppress(OSError):  # it has ended
            self._socket.send(b"d")

    def death(self, when: str = "") -> NodeLostError:
        """Return the error for a process that has ended without a word."""
        return NodeLostError(
            f"the coordinator (pid {self.identity.pid}) died{when}",
            fix="start the run again; tasks that were already started end by themselves",
        )

    @contextlib.contextmanager
    def in_foreground(self, *more: signal.Signals) -> Iterator[None]:
        """Pass Ctrl-C, SIGTERM, the end that a scheduler announces, and `more` on to the background
        process while the block runs."""
        passed_on = (signal.SIGINT, signal.SIGTERM, END_ANNOUNCED, *more)
        before = [(number, signal.signal(number, self._pass_on)) for number in passed_on]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
            for number, handler in before:
                signal.signal(number, handler)

    def _pass_on(self, number: int, frame: object) -> None:
        self.was_signalled |= number != END_ANNOUNCED
        if self.identity.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.identity.pid, number)


def start_and_leave(launch: Launch) -> RunPaths:
    """Start the run in a background process; return once the run folder exists."""
    process = start(launch)
    for message in process.messages():
        if isinstance(message, RunPaths):
            return message
    raise process.death()


def start_and_watch(launch: Launch, watcher: Watcher) -> End | None:
    """Start the run in a background process; return None when the starter leaves it.

    With ``-d`` that is when all tasks are started. Ctrl-C until then stops the run; closing the
    terminal never does. Without, it is when the user wants that; closing the terminal stops the
    run. If the run ends before, return its end.
    """
    if not launch.options.detach:
        return _start_at_terminal(launch, watcher)
    with signals_held_back():
        process = start(launch)
        messages = process.messages()
        with process.in_foreground():
            last = _follow(messages, launch.plan, watcher)
        if last == _STARTED and not process.was_signalled:
            # A Ctrl-C from now on comes too late: it would only hide that the run continues.
            watcher.left()
            return None
        with process.in_foreground():
            last = last if isinstance(last, End) else _follow(messages, launch.plan, watcher)
    if not isinstance(last, End):
        raise process.death(" before all tasks ran")
    return last


def _start_at_terminal(launch: Launch, watcher: Watcher) -> End | None:
    with signals_held_back():
        outlives_terminal = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # under nohup
        process = start(launch)
        messages = process.messages()
        with process.in_foreground(*(() if outlives_terminal else (signal.SIGHUP,))):
            last = _follow(messages, launch.plan, watcher, process.leave)
            if last == _STARTED:
                last = _follow(messages, launch.plan, watcher, process.leave)
    if last == _LEFT:
        watcher.left()
        return None
    if not isinstance(last, End):
        raise process.death()
    return last


def _follow(
    messages: Iterator[Any],
    plan: Plan,
    watcher: Watcher,
    leave: Callable[[], None] | None = None,
) -> object:
    """Handle messages until all tasks run or the run ends; return the last one, or None."""
    for message in messages:
        match message:
            case RunPaths():
                watcher.opened(message, plan, leave)
            case hosts, ports:
                watcher.announced(plan.at(hosts, ports))
            case _:
                return message
    return None


def start(launch: Launch) -> Background:
    """Run `launch` in a new process without a terminal, which ends after it.

    SIGINT, SIGTERM and SIGHUP stay blocked there until its coordinator handles them.
    """
    ours, its = socket.socketpair()
    with its:
        stderr = (_spawn if _has_threads() else _fork)(launch, its.fileno())
    received = ours.makefile("rb")
    try:
        return Background(pickle.load(received), ours, received)
    except EOFError:
        received.close()
        ours.close()
        raise NodeLostError(f"the coordinator's process did not start{stderr}") from None


def _fork(launch: Launch, writer: int) -> str:
    with signals_held_back():
        if (first := os.fork()) == 0:
            _serve(launch, writer)
        with contextlib.suppress(ChildProcessError):  # a program that ignores SIGCHLD
            os.waitpid(first, 0)
    return ""


def _has_threads() -> bool:
    """Return whether this process may have other threads, those of C libraries included."""
    try:
        return len(os.listdir("/proc/self/task")) > 1
    except OSError:  # macOS, whose libraries start threads unseen and do not survive a fork
        return True


def _spawn(launch: Launch, writer: int) -> str:
    """Return what a process that did not start wrote to stderr."""
    package_root = str(Path(__file__).parents[2])
    done = subprocess.run(
        # -P: no module is imported from the current folder.
        [sys.executable, "-P", "-c", _SPAWN, package_root, str(writer)],
        input=pickle.dumps(launch),
        stderr=subprocess.PIPE,
        pass_fds=[writer],
    )
    stderr = done.stderr.decode(errors="replace").strip()
    return f": {stderr}" if stderr else ""


def serve_spawned(writer: int) -> NoReturn:
    """Run the launch on stdin in a child of this process, which a starter with threads started."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    _serve(pickle.load(sys.stdin.buffer), writer)


def _serve(launch: Launch, writer: int) -> NoReturn:
    """Never return: the frames above belong to the starter."""
    try:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # the starter's may end this process
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        if os.fork():
            os._exit(0)  # the child is no session leader, so it can never get a terminal
        if launch.options.detach:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        _detach(keep=writer)
        tell = partial(_tell, writer)
        tell(this_process())
        try:
            _run(launch, writer)
        except TfclusterError as error:
            tell(error)
        except BaseException:
            trace = traceback.format_exc().rstrip()
            tell(TfclusterError(f"internal error (please report it):\n{trace}"))
    finally:
        os._exit(0)


def _run(launch: Launch, writer: int) -> None:
    """Run the whole run in the new process, as the foreground does."""
    again = None if launch.options.detach else find_interrupted(launch.plan, launch.home_dir)
    tell, session = partial(_tell, writer), RunSession(launch, again)
    beside = None if launch.options.detach else partial(_with_starter, writer, session.run_writer)

    def note_start(event: Event) -> None:
        if session.run_writer.state.status is Status.RUNNING:
            session.run_writer.listeners.remove(note_start)
            session.run_writer.save()
            tell(_STARTED)

    with _redirected_output(session.paths.coordinator_log):
        tell(session.paths)
        session.run_writer.listeners.append(note_start)
        end = session.run(lambda plan: tell(_chosen(plan)), beside=beside)
        if end.outcome.error is not None:
            os.write(2, f"tfcluster: {end.outcome.error}\n".encode(errors="replace"))
        tell(end)


@contextlib.contextmanager
def _with_starter(starter: int, run_writer: RunWriter, coordinator: Coordinator) -> Iterator[None]:
    """Stop the run once its starter has ended, unless the user has left the run before."""
    loop = asyncio.get_running_loop()

    def heed() -> None:
        loop.remove_reader(starter)
        try:
            leaves = os.read(starter, 1)
        except OSError:
            leaves = b""
        if not leaves:
            stop_by(coordinator, signal.SIGHUP)
            return
        if run_writer.state.status is not Status.RUNNING:  # it ends, and its end is to be shown
            loop.add_reader(starter, heed)
            return
        loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        coordinator.go_to_background()
        run_writer.state.background = True
        run_writer.mark_changed()
        run_writer.save()
        _tell(starter, _LEFT)

    loop.add_reader(starter, heed)
    try:
        yield
    finally:
        loop.remove_reader(starter)


def _chosen(plan: Plan) -> tuple[dict[str, str], dict[TaskId, int]]:
    """Return what `Plan.at` needs: a starter has the plan, and may be too slow to read it again."""
    tasks = (*plan.tasks, *plan.elsewhere)
    return {task.node: task.host for task in plan.tasks}, {task.id: task.port for task in tasks}


def _detach(*, keep: int) -> None:
    """Let go of the starter's terminal, pipes and working directory."""
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    fds = [int(name) for name in os.listdir("/dev/fd")]
    for fd in fds:
        # Replaced, not closed: a living file object must not close a later file of this number.
        if fd not in (keep, null) and (fd < 3 or _is_open(fd)):
            os.dup2(null, fd, inheritable=fd < 3)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _tell(writer: int, message: object) -> None:
    """Send `message` to the starter, which may have ended."""
    with contextlib.suppress(OSError), os.fdopen(writer, "wb", closefd=False) as pipe:
        pickle.dump(message, pipe)


@contextlib.contextmanager
def _redirected_output(path: Path) -> Iterator[None]:
    """Redirect stdout and stderr to `path`, which is removed if nothing was written."""
    with path.open("ab") as file:
        for fd in (1, 2):
            os.dup2(file.fileno(), fd)
    try:
        yield
    finally:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (1, 2):
            os.dup2(null, fd)
        with contextlib.suppress(OSError):
            if path.stat().st_size == 0:
                path.unlink()
