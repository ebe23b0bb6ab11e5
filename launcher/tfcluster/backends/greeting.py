"""The first words on a connection to an agent: its welcome, or why it will not serve us."""

from __future__ import annotations

import asyncio
from typing import Any

from tfcluster.agent import protocol
from tfcluster.backends import vetting

Frame = tuple[bytes, bytes]
"""Kind and payload."""

_READ_BYTES = 1 << 18


class Refused(Exception):
    """The agent answered the hello, but will not serve us."""


async def welcome(
    reader: asyncio.StreamReader, decoder: protocol.Decoder
) -> tuple[dict[str, Any], list[Frame]]:
    """The agent's answer to a hello, and the frames that came along with it."""
    while data := await reader.read(_READ_BYTES):
        frames = list(decoder.feed(data))
        for number, (kind, payload) in enumerate(frames):
            if kind == protocol.CONTROL:
                message = protocol.read_control(payload)
                vetting.check(message)
                if message.get("type") == "refused":
                    raise Refused(str(message.get("reason")))
                if message["type"] != "welcome":
                    raise protocol.ProtocolError(f"no welcome, but {str(message['type'])[:80]!r}")
                return message, frames[number + 1 :]
    shown = f"; it said: {decoder.noise!r}" if decoder.noise else ""
    raise ConnectionResetError(f"the agent closed the connection{shown}")
