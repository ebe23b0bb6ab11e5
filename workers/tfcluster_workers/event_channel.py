"""Sends a task's events to its agent without delaying the training, and receives its requests.

Each message is one JSON object of at most 64 KiB, sent over an inherited Unix SOCK_SEQPACKET
socket. Without a launcher there is no socket, and events are dropped silently.

A child of the task inherits no socket. It connects to the agent when it begins to train, and sends
the task's events from then on, if the agent agrees (Linux).
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import sys
import time
from collections.abc import Mapping, MutableMapping

TYPE_CHECKING = False  # see boot
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "TFCLUSTER_EVENTS_FD"
CHILDREN_VARIABLE = "TFCLUSTER_EVENTS_SOCKET"
"""The path of the agent's socket for the children of its tasks."""
MAX_MESSAGE = 64 * 1024
KIND = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM
"""The kind of socket that the agent makes; only Linux has Unix sockets of the first kind."""
_AT_ONCE = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)  # Python ignores SIGPIPE, too
_NO_ROOM = (errno.EAGAIN, errno.EINTR, errno.ENOBUFS)
"""macOS says ENOBUFS where Linux says EAGAIN."""
RETRY_S = 2.0
"""Seconds that an event that must not be lost waits for room in the socket."""
ANSWER_S = 10.0
"""Seconds that a child waits for the agent's answer; after that it never asks again."""
AGAIN_S = 5.0
"""Seconds after which a child that was refused asks again: the other one may have ended."""
_KEPT = frozenset(
    {
        *("first_batches", "meets_peers", "note", "reduces", "restored", "saves_on_sigterm"),
        *("setting_read", "task_devices", "unused_gpus"),
    }
)
"""The events of a child from before it trains that are sent once it does."""
_MOST_KEPT = 50


class EventChannel:
    """The task's end of the socket; without a socket it drops every event."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        self._socket = sock
        self._pid = os.getpid()

    @property
    def is_open(self) -> bool:
        # A forked child shares the descriptor but is not the task: it must not report for it.
        return self._socket is not None and os.getpid() == self._pid

    def claim(self) -> int | None:
        """Claim to be the process that trains; see `ChildChannel.claim`. The task itself is it."""
        return None

    def offer(self, event: Mapping[str, Any]) -> bool:
        """Send `event` now or drop it; return whether it was sent. Meant for progress."""
        sock = self._socket
        if sock is None or not self.is_open:
            return False
        try:
            sock.send(encode(event), _AT_ONCE)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                self._socket = None  # the agent is gone, and this task will end with it
            return False
        return True

    def send(self, event: Mapping[str, Any], *, within_s: float = RETRY_S) -> bool:
        """Send `event`, waiting up to `within_s` seconds for room; return whether it was sent."""
        deadline = time.monotonic() + within_s
        while not self.offer(event):
            if not self.is_open:
                return False
            remaining_s = deadline - time.monotonic()
            if self._socket is None or remaining_s <= 0:
                return False
            select.select([], [self._socket], [], remaining_s)
        return True

    def receive(self) -> dict[str, Any] | None:
        """Return a request of the agent; None if there is none."""
        sock = self._socket
        if sock is None or os.getpid() != self._pid:
            return None
        try:
            return dict(json.loads(sock.recv(MAX_MESSAGE, socket.MSG_DONTWAIT)))
        except (OSError, ValueError):  # usually BlockingIOError; ValueError: the agent is gone
            return None

    def wait(self) -> bool:
        """Wait for a request of the agent; return False if none can come any more."""
        sock = self._socket
        if sock is None:
            return False
        try:
            return bool(sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def share(self, event: Mapping[str, Any], fd: int) -> bool:
        """Send `event` with a descriptor, which the agent keeps; return whether it was sent."""
        if self._socket is None or not self.is_open:
            return False
        try:
            socket.send_fds(self._socket, [encode(event)], [fd])
        except OSError:
            return False
        return True


class ChildChannel(EventChannel):
    """The channel of a child of the task: closed until the agent accepts the child's `claim`.

    The agent accepts one child at a time, and none after the task itself has trained.
    """

    def __init__(self, path: str, hello: Mapping[str, Any]) -> None:
        super().__init__()
        self._path, self._hello = path, hello
        self._claim_at = 0.0
        self._kept: list[Mapping[str, Any]] = []

    def claim(self) -> int | None:
        """Claim to be the process that trains, unless that was refused a moment ago.

        Return a descriptor of the task's log if the agent has accepted it now, else None.
        """
        now = time.monotonic()
        if self.is_open or now < self._claim_at:
            return None
        self._claim_at = now + AGAIN_S
        try:
            sock = self._connect({"claims": True})
            _answer, fds, _flags, _address = socket.recv_fds(sock, MAX_MESSAGE, 1)
        except socket.timeout:
            self._claim_at = float("inf")
            return None
        except OSError:
            return None
        if not fds:  # closed without an answer
            return None
        sock.settimeout(None)
        self._socket, kept, self._kept = sock, self._kept, []
        for event in kept:
            self.send(event)
        return fds[0]

    def send(self, event: Mapping[str, Any], *, within_s: float = RETRY_S) -> bool:
        """Send `event` as the task's; before the claim, keep it or have the agent look at it."""
        if self.is_open:
            return super().send(event, within_s=within_s)
        if event["type"] in _KEPT and len(self._kept) < _MOST_KEPT:
            self._kept.append(event)
            return True
        kind = event["type"]
        is_shown = kind == "task_error" or (kind == "task_phase" and not is_helper())
        return is_shown and self.introduce(event)

    def introduce(self, event: Mapping[str, Any] | None = None) -> bool:
        """Let the agent know that this child has hooks, with an `event`: its error or phase."""
        try:
            self._connect({"event": event}).close()
        except OSError:
            return False
        return True

    def _connect(self, facts: Mapping[str, Any]) -> socket.socket:
        """Return a connection to the agent on which this child has said hello; raise OSError."""
        sock = socket.socket(socket.AF_UNIX, KIND)
        try:
            sock.settimeout(ANSWER_S)
            sock.connect(self._path)
            sock.send(encode({**self._hello, **facts}))
        except OSError:
            sock.close()
            raise
        return sock


def encode(event: Mapping[str, Any]) -> bytes:
    """Return `event` as one message of at most 64 KiB; long strings lose their middle."""
    message = json.dumps(event, default=_plain).encode()
    if len(message) <= MAX_MESSAGE:
        return message
    shorter: dict[str, Any] = {
        key: _shorten(value) if isinstance(value, str) else value for key, value in event.items()
    }
    return json.dumps(shorter, default=_plain).encode()


def _plain(value: Any) -> Any:
    """Return a NumPy or TensorFlow scalar (such as a step) as a plain number, else a string."""
    try:
        plain = value.item() if hasattr(value, "item") else value.numpy()
    except Exception:  # no number, or an array of several
        return str(value)
    return str(value) if type(plain) is type(value) else plain


def _shorten(text: str, limit: int = 5000) -> str:
    # 5000 characters are at most 30,000 bytes of JSON (\\uXXXX), so two such strings fit.
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - limit} characters left out …\n{text[-half:]}"


def take_over(environ: MutableMapping[str, str]) -> EventChannel:
    """Take over the socket named in `environ` and remove the variable.

    A descriptor that is not such a socket is left alone: an inherited number once made tfcluster
    write its JSON into a user's file.
    """
    number = environ.pop(VARIABLE, "")
    if not number.isdigit():
        return of_child(environ)
    try:
        sock = socket.socket(fileno=int(number))
    except (OSError, OverflowError):
        return EventChannel()
    if sock.family != socket.AF_UNIX or sock.type != KIND:
        sock.detach()
        return EventChannel()
    sock.set_inheritable(False)
    return EventChannel(sock)


def of_child(environ: Mapping[str, str]) -> EventChannel:
    """Return the channel of a child of a task; a closed one outside of tasks."""
    path = environ.get(CHILDREN_VARIABLE)
    if not path:
        return EventChannel()
    names = {"task": "TFCLUSTER_TASK", "attempt": "TFCLUSTER_ATTEMPT"}
    return ChildChannel(path, {key: environ.get(name, "") for key, name in names.items()})


def is_pool_worker() -> bool:
    """Return whether multiprocessing, or a package on top of it, has started this process."""
    processes: Any = sys.modules.get("multiprocessing.process")
    return processes is not None and (
        processes.parent_process() is not None
        or getattr(processes.current_process(), "_inheriting", False)  # while it is being started
    )


def is_helper() -> bool:
    """Return whether this process hardly trains, but works for another one: ``python -c``."""
    return is_pool_worker() or sys.argv[:1] == ["-c"]


channel: EventChannel | None = None
_pid = os.getpid()
"""The process that `channel` is for."""


def install(new: EventChannel) -> None:
    """Make `new` the channel of this process."""
    global channel, _pid
    channel, _pid = new, os.getpid()


def current() -> EventChannel:
    """Return the channel of this process.

    `boot` installs it. A task that was started without boot (`hooks: off`, a `command`) and calls
    tfcluster_workers itself takes over its socket here, so that its events arrive. A fork of the
    task is one of its children.
    """
    if channel is None:
        install(take_over(os.environ))
    elif os.getpid() != _pid:
        install(of_child(os.environ))
    assert channel is not None
    return channel
