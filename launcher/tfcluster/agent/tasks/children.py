"""The children of tasks that train in a task's place: a script may start the training as a child.

A child cannot inherit the task's socket of events. It connects to a socket of the agent, whose path
tasks have in their environment, and says hello (`tfcluster_workers.event_channel.ChildChannel`):

* with or without an event: it has hooks, and imports TensorFlow or ends with an exception;
* with `claims`: it trains. If it is accepted it gets a descriptor of the task's log, and then sends
  what a task sends, on this connection; else the connection is closed.

One child of a task is accepted at a time, and none after the task itself has trained.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from collections.abc import Callable, Collection

from tfcluster.agent.budgets import CHILD_HELLOS
from tfcluster.agent.guard import Recorder, file_identity
from tfcluster.agent.net.listener import is_own_user, listen, process_of
from tfcluster.agent.processes import IS_LINUX, command_line, descendants, parent_of, read_bytes
from tfcluster.agent.tasks.last_step import LastStep
from tfcluster.agent.tasks.stray_processes import carries

SUFFIX = "s"
"""The end of the socket's path after that of the agent, which may have 103 bytes of Linux's 107."""
MAX_HELLO = 64 << 10
_BACKLOG = 128
_TENSORFLOW = b"/libtensorflow"
"""A part of the path of TensorFlow's shared libraries, since 1.13."""


class ChildSocket:
    """The socket on which the children of this agent's tasks say hello."""

    def __init__(
        self,
        path: str,
        recorder: Recorder,
        selector: selectors.BaseSelector,
        on_hello: Callable[[socket.socket, int, bytes], None],
    ) -> None:
        """Prepare; `on_hello` gets a connection, the child's pid and its hello as JSON."""
        self._path, self._recorder, self._selector = path, recorder, selector
        self._on_hello = on_hello
        self._listener: socket.socket | None = None
        self._identity = ""
        self._silent: list[socket.socket] = []
        """The connections without a hello, the oldest first."""

    def open(self) -> str:
        """Listen, also again after a cleaner of the folder removed the socket; return its path.

        Return an empty path where that is impossible: children then report nothing.
        """
        if not IS_LINUX:
            return ""
        if self._listener is None or not os.path.lexists(self._path):
            self.close()
            try:
                self._listener = listen(self._path, socket.SOCK_SEQPACKET, backlog=_BACKLOG)
                self._identity = file_identity(self._path)
            except OSError:
                return ""
            self._recorder.add_file(self._path)
            self._selector.register(self._listener, selectors.EVENT_READ, lambda _: self.read())
        return self._path

    def read(self) -> None:
        """Read all hellos that have come."""
        while self._listener is not None:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                break
            if not is_own_user(peer):
                peer.close()
                continue
            peer.setblocking(False)
            if len(self._silent) >= CHILD_HELLOS:
                self._forget(self._silent[0]).close()
            self._silent.append(peer)
            self._selector.register(peer, selectors.EVENT_READ, lambda _, p=peer: self._read(p))
        for peer in list(self._silent):
            self._read(peer)

    def _read(self, peer: socket.socket) -> None:
        try:
            raw = peer.recv(MAX_HELLO + 1)
        except BlockingIOError:
            return
        except OSError:
            raw = b""
        self._forget(peer)
        try:
            self._on_hello(peer, process_of(peer), raw)
        except (OSError, ValueError):
            peer.close()

    def _forget(self, peer: socket.socket) -> socket.socket:
        self._silent.remove(peer)
        self._selector.unregister(peer)
        return peer

    def close(self) -> None:
        """Remove the socket."""
        for peer in list(self._silent):
            self._forget(peer).close()
        if self._listener is None:
            return
        self._selector.unregister(self._listener)
        self._listener.close()
        self._listener = None
        with contextlib.suppress(OSError):
            if file_identity(self._path) == self._identity:  # else a later agent made it
                os.unlink(self._path)
        self._recorder.drop_file(self._path)


class Child:
    """An accepted child: its events are those of the task."""

    def __init__(self, peer: socket.socket, pid: int) -> None:
        self.socket, self.pid = peer, pid
        self.last_step = LastStep()

    def accept(self, pipe: int) -> None:
        """Tell the child that it is accepted, and give it the end of its task's pipe to write to.

        Raises OSError if the child, or the pipe, is gone.
        """
        log = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            socket.send_fds(self.socket, [b'{"accepted": true}'], [log])
        finally:
            os.close(log)

    def close(self) -> None:
        self.socket.close()
        self.last_step.close()


def belongs_to(pid: int, task_pid: int, marks: Collection[bytes]) -> bool:
    """Return whether a process is a task, below one, or was started below it (`marks`)."""
    above, agent = pid, os.getpid()
    while above not in (0, 1, agent):
        if above == task_pid:
            return True
        above = parent_of(above)
    return carries(marks)(pid)


def find_unhooked(task_pid: int, hooked: Collection[int]) -> str:
    """Return the command of a process below a task that has loaded TensorFlow without hooks, or "".

    `hooked`: those that have said hello. A fork has the hooks, and the command, of its parent.
    """
    for pid in descendants(task_pid):
        if pid in hooked or _TENSORFLOW not in read_bytes(f"/proc/{pid}/maps"):
            continue
        command = command_line(pid)
        if command and command != command_line(parent_of(pid)):
            return " ".join(command.split())  # `python -c` may have several lines
    return ""
