"""Sends a task's events to its agent without delaying the training.

Each message is one JSON object of at most 64 KiB, sent over an inherited Unix SOCK_SEQPACKET
socket. Without a launcher there is no socket, and events are dropped silently.
"""

from __future__ import annotations

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
MAX_MESSAGE = 64 * 1024
KIND = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM
"""The kind of socket that the agent makes; only Linux has Unix sockets of the first kind."""
RETRY_S = 2.0
"""Seconds that an event that must not be lost waits for room in the socket."""


class EventChannel:
    """The task's end of the socket; without a socket it drops every event."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        self._socket = sock
        self._pid = os.getpid()

    @property
    def is_open(self) -> bool:
        # A forked child shares the descriptor but is not the task: it must not report for it.
        return self._socket is not None and os.getpid() == self._pid

    def offer(self, event: Mapping[str, Any]) -> bool:
        """Send `event` now or drop it; return whether it was sent. Meant for progress."""
        sock = self._socket
        if sock is None or not self.is_open:
            return False
        try:
            sock.send(encode(event), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
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

    def share(self, event: Mapping[str, Any], fd: int) -> bool:
        """Send `event` with a descriptor, which the agent keeps; return whether it was sent."""
        if self._socket is None or not self.is_open:
            return False
        try:
            socket.send_fds(self._socket, [encode(event)], [fd])
        except OSError:
            return False
        return True


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
        return EventChannel()
    try:
        sock = socket.socket(fileno=int(number))
    except (OSError, OverflowError):
        return EventChannel()
    if sock.family != socket.AF_UNIX or sock.type != KIND:
        sock.detach()
        return EventChannel()
    sock.set_inheritable(False)
    return EventChannel(sock)


channel: EventChannel | None = None


def install(new: EventChannel) -> None:
    """Make `new` the channel of this process."""
    global channel
    channel = new


def current() -> EventChannel:
    """Return the channel of this process.

    `boot` installs it. A task that was started without boot (`hooks: off`, a `command`) and calls
    tfcluster_workers itself takes over its socket here, so that its events arrive.
    """
    if channel is None:
        install(take_over(os.environ))
    assert channel is not None
    return channel
