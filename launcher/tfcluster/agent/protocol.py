"""The frames that a coordinator and an agent exchange over a byte stream; both use this module.

A frame is kind (1 byte), length (4 bytes, big-endian, at most 16 MiB), payload:

====  ===================================================================================
`C`   control: a JSON object; "n" counts from 1; kept until acknowledged (n = 0: never kept)
`A`   acknowledgement: 8-byte big-endian number, the highest "n" received
`L`   log bytes: u16 length of name, name, u64 offset, raw bytes
`F`   file bytes: laid out as `L`
`X`   bytes of a command beside a task: laid out as `L`; see `agent.exec_frames`
`P`   ping: empty. With a lease both sides send pings, without one the agent returns them
====  ===================================================================================

The agent's stream begins with `MAGIC`. Up to 64 KiB of noise before it (login banners, output of
a `.bashrc`) is skipped, and shown in the error if the marker never comes.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Iterator

from tfcluster.agent import Any
from tfcluster.agent.foreign_json import parse_json_object

VERSION = 1
MAGIC = b"\x00tfcluster-agent 1\n"
MAX_PAYLOAD = 16 << 20
MAX_NOISE = 64 << 10
NOT_IN_FILE = (1 << 64) - 1
"""The offset of log bytes that the file lost (disk full) but that are still streamed live."""

CONTROL, ACK, LOG, FILE, EXEC, PING = b"C", b"A", b"L", b"F", b"X", b"P"
_KINDS = frozenset((CONTROL, ACK, LOG, FILE, EXEC, PING))
_HEADER = struct.Struct(">cI")
_NAME_LENGTH = struct.Struct(">H")
_NUMBER = struct.Struct(">Q")


class ProtocolError(ValueError):
    """The stream is damaged, or the other side does not speak this protocol."""


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """Return one encoded frame. Raises ProtocolError for a payload over 16 MiB."""
    if len(payload) > MAX_PAYLOAD:
        raise ProtocolError(f"a frame of {len(payload)} bytes is over the limit of {MAX_PAYLOAD}")
    return _HEADER.pack(kind, len(payload)) + payload


def control_frame(message: dict[str, Any]) -> bytes:
    """Return the frame of a message; the parts of one may be `message_fields.Message`."""
    return frame(CONTROL, json.dumps(message, separators=(",", ":"), default=vars).encode())


def data_frame(kind: bytes, name: str, offset: int, data: bytes) -> bytes:
    """Return a frame of `kind` with the `data` at `offset` of what is called `name`."""
    raw = name.encode()
    return frame(kind, _NAME_LENGTH.pack(len(raw)) + raw + _NUMBER.pack(offset) + data)


def read_control(payload: bytes) -> dict[str, Any]:
    """Return the message of a control frame. Raises ProtocolError for anything but an object."""
    try:
        return parse_json_object(payload)
    except ValueError as error:
        raise ProtocolError(f"a control frame is not a JSON object: {error}") from None


def read_data(payload: bytes) -> tuple[str, int, bytes]:
    """Return name, offset and bytes of such a frame. Raises ProtocolError."""
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
    """A parser that turns a byte stream, received in any pieces, into (kind, payload) pairs."""

    def __init__(
        self,
        *,
        after_magic: bool = False,
        max_payload: int = MAX_PAYLOAD,
        max_control: int = MAX_PAYLOAD,
    ) -> None:
        """Prepare for one stream.

        `after_magic`: the stream comes from an agent and begins with noise and `MAGIC`.
        `max_payload` and `max_control` limit a payload, and a control message's, in bytes.
        """
        self.max_payload, self._max_control = max_payload, max_control
        self._buffer = bytearray()
        self._awaits_magic = after_magic
        self.noise = b""
        """The bytes before the marker; all bytes so far while the marker has not come."""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the frames that `data` completes. Raises ProtocolError for any other stream."""
        self._buffer += data
        if self._awaits_magic and not self._skip_noise():
            return
        start = 0
        try:
            while len(self._buffer) - start >= _HEADER.size:
                kind, length = _HEADER.unpack_from(self._buffer, start)
                most = self.max_payload
                if kind == CONTROL:
                    most = min(most, self._max_control)
                if kind not in _KINDS or length > most:
                    raise ProtocolError(f"not a frame: {bytes(self._buffer[start : start + 40])!r}")
                end = start + _HEADER.size + length
                if len(self._buffer) < end:
                    break
                with memoryview(self._buffer) as view:  # one copy less: files have gigabytes
                    payload = bytes(view[start + _HEADER.size : end])
                start = end
                yield kind, payload
        finally:
            del self._buffer[:start]

    def _skip_noise(self) -> bool:
        at = self._buffer.find(MAGIC)
        if at > MAX_NOISE or (at < 0 and len(self._buffer) > MAX_NOISE + len(MAGIC)):
            raise ProtocolError(f"no agent answered; received: {bytes(self._buffer[:2000])!r}")
        if at < 0:
            self.noise = bytes(self._buffer)
            return False
        self.noise = bytes(self._buffer[:at])
        del self._buffer[: at + len(MAGIC)]
        self._awaits_magic = False
        return True


class Session:
    """One side's message numbers; it outlives connections: nothing is lost or handled twice."""

    def __init__(self) -> None:
        self.last_sent = 0
        """The number of the newest message."""
        self._unacknowledged: deque[tuple[int, bytes]] = deque()
        self.last_seen = 0
        """The highest number received from the other side."""

    @property
    def backlog(self) -> int:
        """The number of messages that wait for an acknowledgement."""
        return len(self._unacknowledged)

    def waits_for(self, number: int) -> bool:
        """Return whether the message with this number is not acknowledged yet."""
        return bool(self._unacknowledged) and self._unacknowledged[0][0] <= number

    def number(self, message: dict[str, Any]) -> bytes:
        """Number a message and return its frame, which is kept until acknowledged."""
        self.last_sent += 1
        encoded = control_frame({**message, "n": self.last_sent})
        self._unacknowledged.append((self.last_sent, encoded))
        return encoded

    def is_new(self, message: dict[str, Any]) -> bool:
        """Return False for a message that already came over an earlier connection."""
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
        """Return the frames to send again to a side that has received all up to `last_seen`."""
        self.acknowledged(last_seen)
        return [encoded for _, encoded in self._unacknowledged]
