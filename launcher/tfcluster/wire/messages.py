"""The border of a connection: frames of an agent become checked messages of the catalogue.

A node is not trusted: whatever an agent of this version would not send is a ProtocolError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Self

from tfcluster.agent import catalogue as msg
from tfcluster.agent import protocol
from tfcluster.agent.message_fields import parse, shorten
from tfcluster.agent.protocol import ProtocolError

Frame = tuple[bytes, bytes]
"""The kind and the payload of a frame."""

_READ_BYTES = 1 << 18


class LinkReport(msg.Report):
    """A message of the coordinator's end of a link to its own side."""

    @classmethod
    def read(cls, data: object) -> Self:
        raise ProtocolError(f"a message {cls.type!r}, which no agent sends")


class LinkCut(LinkReport):
    lease_s: float
    why: str | None


class LinkBack(LinkReport):
    pid: int
    guard_pid: int


class Slice(LinkReport):
    """Bytes of a log (``worker:0/1``), a file (the question's number), a stream (``7/stdout``)."""

    name: str
    offset: int
    data: bytes


class Log(Slice):
    pass


class FileSlice(Slice):
    pass


class ExecData(Slice):
    """An `X` frame: bytes of a command beside a task, or how much of its stdin was written."""


class Reconnected(LinkReport):
    """The connection is a new one: all questions must be asked again."""


class RateLifted(LinkReport):
    """No task trains on the node any more: reads need not be slow."""


class Unknown(LinkReport):
    """A message of a type that this version does not know; it is ignored."""


class HelloRefused(Exception):
    """The agent answered the hello with a refusal; the text is its reason."""


def read_report(message: Mapping[str, Any]) -> msg.Report:
    """Return an agent's message. Raises ProtocolError for an invalid one."""
    report = parse(message, msg.Report)
    if isinstance(report, msg.Welcome) and report.identity is not None:
        msg.Identity.read(report.identity)
    number = message.get("n", 0)
    if not isinstance(number, int) or not 0 <= number < 1 << 63:
        raise ProtocolError(f"a message {message['type']!r} whose n is {shorten(number)}")
    return report or Unknown()


def read_file_report(kind: bytes, payload: bytes) -> msg.FileReport | FileSlice:
    """Return what a file process has sent. Raises ProtocolError for anything else."""
    if kind == protocol.FILE:
        name, offset, data = protocol.read_data(payload)
        return FileSlice(name=name, offset=offset, data=data)
    report = read_report(protocol.read_control(payload)) if kind == protocol.CONTROL else None
    if not isinstance(report, msg.FileReport):
        raise ProtocolError("a message that is not about files")
    return report


async def read_welcome(
    reader: asyncio.StreamReader, decoder: protocol.Decoder
) -> tuple[msg.Welcome, list[Frame]]:
    """Return the agent's answer to a hello, and the frames that arrived with it.

    Raises HelloRefused, ProtocolError, and ConnectionResetError if the agent closed the connection.
    """
    while data := await reader.read(_READ_BYTES):
        frames = list(decoder.feed(data))
        for number, (kind, payload) in enumerate(frames):
            if kind == protocol.CONTROL:
                match read_report(protocol.read_control(payload)):
                    case msg.Refused(reason=reason):
                        raise HelloRefused(reason)
                    case msg.Welcome() as welcome:
                        return welcome, frames[number + 1 :]
                    case other:
                        raise ProtocolError(f"expected a welcome, got {other.type!r}")
    shown = f"; its output: {decoder.noise!r}" if decoder.noise else ""
    raise ConnectionResetError(f"the agent closed the connection{shown}")
