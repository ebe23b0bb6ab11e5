"""Carries a task's events to its agent without ever holding up the training.

One JSON object a message over an inherited Unix SOCK_SEQPACKET socket, at most 64 KiB. Without
a launcher there is no socket and every event is dropped in silence.
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
"""As the agent makes it: other systems have no Unix sockets of the first kind."""
RETRY_S = 2.0
"""How long an event that must not be lost waits for room in the socket."""


class EventChannel:
    """The task's end of the socket, or of nothing."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        self._socket = sock
        self._pid = os.getpid()

    @property
    def is_open(self) -> bool:
        # A forked child shares the descriptor but is not the task: it must not speak for it.
        return self._socket is not None and os.getpid() == self._pid

    def offer(self, event: Mapping[str, Any]) -> bool:
        """Send at once or not at all; True if it was sent. For progress."""
        sock = self._socket
        if sock is None or not self.is_open:
            return False
        try:
            sock.send(encode(event), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self._socket = None  # the agent is gone, and so shall we be in a moment
            return False
        return True

    def send(self, event: Mapping[str, Any], *, within_s: float = RETRY_S) -> bool:
        """Send, waiting up to `within_s` seconds for room. For what must not be lost."""
        deadline = time.monotonic() + within_s
        while not self.offer(event):
            if not self.is_open:
                return False
            left = deadline - time.monotonic()
            if self._socket is None or left <= 0:
                return False
            select.select([], [self._socket], [], left)
        return True


def encode(event: Mapping[str, Any]) -> bytes:
    """`event` as one message of at most 64 KiB; a long traceback loses its middle."""
    message = json.dumps(event, default=_plain).encode()
    if len(message) <= MAX_MESSAGE:
        return message
    shorter: dict[str, Any] = {
        key: _shorten(value) if isinstance(value, str) else value for key, value in event.items()
    }
    return json.dumps(shorter, default=_plain).encode()


def _plain(value: Any) -> Any:
    """A number of NumPy's or TensorFlow's (a step that a callback was handed) as the number."""
    try:
        found = value.item() if hasattr(value, "item") else value.numpy()
    except Exception:  # it is none, or an array of several
        return str(value)
    return str(value) if type(found) is type(value) else found


def _shorten(text: str, limit: int = 5000) -> str:
    # 5000 characters are at most 30,000 bytes of JSON (\\uXXXX), so two such texts fit.
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - limit} characters left out …\n{text[-half:]}"


def take_over(environ: MutableMapping[str, str]) -> EventChannel:
    """Adopt the socket named in `environ` and remove the variable.

    A number that is no such socket is left alone: an inherited number once wrote our JSON into a
    user's file.
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
    """The channel of this process.

    `boot` has installed it. A task started without boot (`hooks: off`, a `command`) that calls
    tfcluster_workers itself adopts its socket here, so that what it says is heard.
    """
    if channel is None:
        install(take_over(os.environ))
    assert channel is not None
    return channel
