"""The process beside an agent that handles its files: one order after the other, in slices.

It may wait for the disk and for the agent, which reads from it only while the line to the
coordinator has room: so nothing piles up anywhere.
"""

from __future__ import annotations

import select
import time

from tfcluster.agent import protocol
from tfcluster.agent.error_words import words_of
from tfcluster.agent.incoming import Incoming
from tfcluster.agent.outgoing import Outgoing
from tfcluster.agent.shared import look

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

ALIVE_S = 2.0
"""Whoever waits gives up after many times that (`far_files.SILENCE_S`)."""
_READ_BYTES = 256 << 10
_FAILED: dict[str, dict[str, Any]] = {
    "receive": {"type": "receive_failed"},
    "scan": {"type": "scanned", "entries": []},
    "read": {"type": "read_end"},
    "look": {"type": "looked", "folder": None},
}
"""Order → how it is answered, with an `error`, where it fails: the node itself goes on. Nobody
waits for an answer to the others."""


class Filer:
    """Speaks frames with the agent over a socket that blocks."""

    def __init__(self, agent: socket.socket, cache: str, passing: str) -> None:
        self._agent = agent
        self._decoder = protocol.Decoder()
        self._said_at = time.monotonic()
        self._incoming = Incoming(cache, self._say, passing=passing, alive=self._alive)
        self._outgoing = Outgoing(self._say, self._send_bytes, self._alive)

    def run(self) -> None:
        """Until the agent is gone."""
        while True:
            wait = self._outgoing.patience(time.monotonic())
            if select.select([self._agent], [], [], wait)[0]:
                data = self._agent.recv(_READ_BYTES)
                if not data:
                    return
                for kind, payload in self._decoder.feed(data):
                    self._heed(kind, payload)
            self._outgoing.turn(time.monotonic())

    def _heed(self, kind: bytes, payload: bytes) -> None:
        if kind == protocol.FILE:
            self._incoming.take(*protocol.read_data(payload))
            return
        order = protocol.read_control(payload)
        orders: dict[str, Callable[[dict[str, Any]], None]] = {
            "receive": self._incoming.receive,
            "scan": self._outgoing.scan,
            "read": self._outgoing.read,
            "got": self._outgoing.got,
            "hurry": self._outgoing.hurry,
            "look": lambda order: self._say(look(order)),
            "cancel": self._cancel,
            "forget": self._forget,
        }
        try:
            orders[order["type"]](order)
        except (KeyError, TypeError, ValueError, OSError) as error:
            self._fail(order, f"{type(error).__name__}: {words_of(error)}")

    def _fail(self, order: dict[str, Any], reason: str) -> None:
        answer = _FAILED.get(order.get("type", ""))
        if answer is not None and isinstance(order.get("id"), int):
            self._say({**answer, "id": order["id"], "error": reason})

    def _cancel(self, order: dict[str, Any]) -> None:
        self._incoming.cancel(order["id"])
        self._outgoing.cancel(order["id"])

    def _forget(self, _order: dict[str, Any]) -> None:
        self._incoming.forget()
        self._outgoing.forget()

    def _say(self, message: dict[str, Any]) -> None:
        self._agent.sendall(protocol.control_frame(message))
        self._said_at = time.monotonic()

    def _send_bytes(self, name: str, offset: int, data: bytes) -> None:
        self._agent.sendall(protocol.data_frame(protocol.FILE, name, offset, data))
        self._said_at = time.monotonic()

    def _alive(self, number: int) -> None:
        """Something takes long, but goes on: who waits for it hears that from time to time."""
        if time.monotonic() > self._said_at + ALIVE_S:
            self._say({"type": "moving", "id": number})
