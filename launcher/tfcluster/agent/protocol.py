"""Frames between a coordinator and an agent over any byte stream; both sides use this module.

A frame is kind (1 byte), length (4 bytes, big-endian, at most 16 MiB), payload:

====  ===================================================================================
`C`   control: a JSON object; its "n" counts from 1 and is kept until acknowledged (0: never kept)
`A`   acknowledgement: 8-byte big-endian number, the highest "n" received
`L`   log bytes: u16 length of name, name, u64 offset, raw bytes
`F`   file bytes: the same
`P`   ping: empty. With a lease both sides send them, without one the agent returns them
====  ===================================================================================

The agent's side begins with `MAGIC`; up to 64 KiB of noise before it (login banners, what a
`.bashrc` prints) is skipped, and shown when the marker never comes.
"""

from __future__ import annotations

import json
import struct
from collections import deque

from tfcluster.agent.foreign_json import parse_json_object

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported: it would cost the agent a megabyte
    from collections.abc import Iterator
    from typing import Any

VERSION = 1
MAGIC = b"\x00tfcluster-agent 1\n"
MAX_PAYLOAD = 16 << 20
MAX_NOISE = 64 << 10
NOT_IN_FILE = (1 << 64) - 1
"""Offset of log bytes that the file lost (disk full) but that are still streamed live."""

CONTROL, ACK, LOG, FILE, PING = b"C", b"A", b"L", b"F", b"P"
_KINDS = frozenset((CONTROL, ACK, LOG, FILE, PING))
_HEADER = struct.Struct(">cI")
_NAME_LENGTH = struct.Struct(">H")
_NUMBER = struct.Struct(">Q")


class ProtocolError(Exception):
    """The other side does not speak this protocol, or the stream is damaged."""


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """Raises ProtocolError for a payload over 16 MiB."""
    if len(payload) > MAX_PAYLOAD:
        raise ProtocolError(f"a frame of {len(payload)} bytes is over the limit of {MAX_PAYLOAD}")
    return _HEADER.pack(kind, len(payload)) + payload


def control_frame(message: dict[str, Any]) -> bytes:
    return frame(CONTROL, json.dumps(message, separators=(",", ":")).encode())


def data_frame(kind: bytes, name: str, offset: int, data: bytes) -> bytes:
    """A `LOG` or `FILE` frame: `data` stands at `offset` of the file called `name`."""
    raw = name.encode()
    return frame(kind, _NAME_LENGTH.pack(len(raw)) + raw + _NUMBER.pack(offset) + data)


def read_control(payload: bytes) -> dict[str, Any]:
    """Raises ProtocolError unless `payload` is a JSON object."""
    try:
        return parse_json_object(payload)
    except ValueError as error:
        raise ProtocolError(f"a control frame holds no JSON object: {error}") from None


def read_data(payload: bytes) -> tuple[str, int, bytes]:
    """Name, offset and bytes of a `LOG` or `FILE` frame."""
    try:
        (length,) = _NAME_LENGTH.unpack_from(payload)
        name = payload[2 : 2 + length].decode()
        (offset,) = _NUMBER.unpack_from(payload, 2 + length)
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"a data frame is damaged: {error}") from None
    return name, offset, payload[2 + length + _NUMBER.size :]


def read_number(payload: bytes) -> int:
    if len(payload) != _NUMBER.size:
        raise ProtocolError("an acknowledgement is damaged")
    number: int = _NUMBER.unpack(payload)[0]
    return number


class Decoder:
    """Turns a byte stream, cut anywhere, into (kind, payload)."""

    def __init__(
        self,
        *,
        after_magic: bool = False,
        most: int = MAX_PAYLOAD,
        most_control: int = MAX_PAYLOAD,
    ) -> None:
        """`after_magic`: the stream begins with noise and `MAGIC` (it comes from an agent).
        `most`: bytes of a payload, `most_control`: of one that is a control message."""
        self.most, self._most_control = most, most_control
        self._buffer = bytearray()
        self._awaits_magic = after_magic
        self.noise = b""
        """What stood before the marker; while it has not come: all that was read."""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Raises ProtocolError for a stream that is not ours."""
        self._buffer += data
        if self._awaits_magic and not self._skip_noise():
            return
        start = 0
        try:
            while len(self._buffer) - start >= _HEADER.size:
                kind, length = _HEADER.unpack_from(self._buffer, start)
                most = min(self.most, self._most_control) if kind == CONTROL else self.most
                if kind not in _KINDS or length > most:
                    raise ProtocolError(f"not a frame: {bytes(self._buffer[start : start + 40])!r}")
                end = start + _HEADER.size + length
                if len(self._buffer) < end:
                    break
                with memoryview(self._buffer) as view:  # of files come gigabytes
                    payload = bytes(view[start + _HEADER.size : end])
                start = end
                yield kind, payload
        finally:
            del self._buffer[:start]

    def _skip_noise(self) -> bool:
        at = self._buffer.find(MAGIC)
        if at > MAX_NOISE or (at < 0 and len(self._buffer) > MAX_NOISE + len(MAGIC)):
            raise ProtocolError(f"no agent answered; instead came: {bytes(self._buffer[:2000])!r}")
        if at < 0:
            self.noise = bytes(self._buffer)
            return False
        self.noise = bytes(self._buffer[:at])
        del self._buffer[: at + len(MAGIC)]
        self._awaits_magic = False
        return True


class Session:
    """One side's numbering: survives connections, so that nothing is lost or done twice."""

    def __init__(self) -> None:
        self._last_sent = 0
        self._unacknowledged: deque[tuple[int, bytes]] = deque()
        self.last_seen = 0
        """Highest number received from the other side."""

    @property
    def backlog(self) -> int:
        """How many messages wait for an acknowledgement."""
        return len(self._unacknowledged)

    @property
    def last_sent(self) -> int:
        """The number of the newest message."""
        return self._last_sent

    def waits_for(self, number: int) -> bool:
        """Whether the message with this number is not acknowledged yet."""
        return bool(self._unacknowledged) and self._unacknowledged[0][0] <= number

    def number(self, message: dict[str, Any]) -> bytes:
        """The frame to send; kept until acknowledged."""
        self._last_sent += 1
        encoded = control_frame({**message, "n": self._last_sent})
        self._unacknowledged.append((self._last_sent, encoded))
        return encoded

    def is_new(self, message: dict[str, Any]) -> bool:
        """False for a message that was received before, over an earlier connection."""
        n = message.get("n", 0)
        if n == 0:
            return True
        if n <= self.last_seen:
            return False
        self.last_seen = n
        return True

    def acknowledgement(self) -> bytes:
        return frame(ACK, _NUMBER.pack(self.last_seen))

    def acknowledged(self, number: int) -> None:
        while self._unacknowledged and self._unacknowledged[0][0] <= number:
            self._unacknowledged.popleft()

    def resume(self, last_seen: int) -> list[bytes]:
        """Frames to send again to a side that has seen everything up to `last_seen`."""
        self.acknowledged(last_seen)
        return [encoded for _, encoded in self._unacknowledged]
