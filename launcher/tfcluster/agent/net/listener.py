"""The agent's Unix socket: listening, the peer's identity, and buffered connections."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import time

from tfcluster.agent import Any, budgets, protocol
from tfcluster.agent.foreign_json import parse_json_object
from tfcluster.agent.net.private_folders import make_private

NUMBER = struct.Struct(">I")
"""The length before a message of `read_message`."""
ENOUGH_QUEUED = 1 << 20
"""The bytes waiting to be sent from which on no more log bytes are read from the file."""


def listen(path: str, kind: int = socket.SOCK_STREAM, *, backlog: int = 4) -> socket.socket:
    """Return a listening socket at `path`, whose folder is made private. Raises OSError."""
    make_private(os.path.dirname(path))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(backlog)
    listener.setblocking(False)
    return listener


def is_own_user(peer: socket.socket) -> bool:
    """Return whether the other end belongs to this user or root (Linux; elsewhere True)."""
    return _credentials(peer)[1] in (os.getuid(), 0)


def process_of(peer: socket.socket) -> int:
    """Return the pid that called `connect` or `listen` at the other end (Linux; elsewhere 0)."""
    return _credentials(peer)[0]


def _credentials(peer: socket.socket) -> tuple[int, int]:
    """Return the other end's process id and user (unix(7), SO_PEERCRED)."""
    pid, uid = 0, os.getuid()
    if sys.platform == "linux":
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, uid, _gid = struct.unpack("3i", raw)
    return pid, uid


class Connection:
    """One accepted connection; `is_welcomed` after a valid hello."""

    def __init__(self, peer: socket.socket) -> None:
        peer.setblocking(False)
        self.socket = peer
        self.is_welcomed = False
        self.streams_logs = False
        self.hello_by = time.monotonic() + budgets.HELLO_S
        self._decoder = protocol.Decoder(max_payload=budgets.HELLO_BYTES)
        self._outgoing = bytearray(protocol.MAGIC)

    @property
    def queued(self) -> int:
        return len(self._outgoing)

    @property
    def room(self) -> int:
        return max(0, ENOUGH_QUEUED - len(self._outgoing))

    def read(self) -> list[tuple[bytes, bytes]] | None:
        """Return the received frames; None at the connection's end. Raises ProtocolError."""
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return []
        except OSError:
            return None
        return list(self._decoder.feed(data)) if data else None

    def welcome(self) -> None:
        """Accept the connection's hello; frames of any allowed size may follow."""
        self.is_welcomed = True
        self._decoder.max_payload = protocol.MAX_PAYLOAD

    def queue(self, frame: bytes) -> None:
        self._outgoing += frame

    def flush(self) -> bool:
        """Send what the socket takes; return False at the end of the connection."""
        try:
            while self._outgoing:
                del self._outgoing[: self.socket.send(self._outgoing)]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def hang_up(self, timeout_s: float) -> None:
        """Send the rest and wait for the other end to close.

        Closing first, with its last acknowledgement unread, would be an error at the other end and
        could lose the last messages.
        """
        with contextlib.suppress(OSError):
            self.socket.settimeout(timeout_s)
            self.flush()
            self.socket.shutdown(socket.SHUT_WR)
            deadline = time.monotonic() + timeout_s
            while time.monotonic() < deadline and self.socket.recv(1 << 16):
                pass
        self.socket.close()

    def refuse(self, reason: str) -> None:
        from tfcluster.agent.catalogue import Refused  # here: `ps` imports this module

        self.queue(protocol.control_frame({**Refused(reason=reason).to_json(), "n": 0}))
        self.flush()
        self.socket.close()


def read_message(line: socket.socket, timeout_s: float) -> dict[str, Any]:
    """Read a length and that many bytes of JSON; return {} if that fails or takes too long."""
    deadline = time.monotonic() + timeout_s
    with contextlib.suppress(OSError, ValueError, struct.error):
        size = NUMBER.unpack(_read_exactly(line, NUMBER.size, deadline))[0]
        if size > protocol.MAX_PAYLOAD:
            return {}
        return parse_json_object(_read_exactly(line, size, deadline))
    return {}


def _read_exactly(line: socket.socket, size: int, deadline: float) -> bytes:
    data = b""  # in pieces: MSG_WAITALL does not wait on a socket with a time-out
    while len(data) < size:
        line.settimeout(max(0.001, deadline - time.monotonic()))
        piece = line.recv(size - len(data))
        if not piece:
            break
        data += piece
    return data
