"""The file process answers a failed order with an error and keeps running."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tfcluster.agent import protocol
from tfcluster.agent.files.file_process import FileProcess


class Client:
    """A file process and the messages that it sends to its agent."""

    def __init__(self, folder: Path) -> None:
        self._socket, its_end = socket.socketpair()
        self._its_end = its_end
        self.filer = FileProcess(its_end, str(folder / "cache"), str(folder / "passing"))

    def order(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        decoder = protocol.Decoder()
        for kind, payload in decoder.feed(protocol.control_frame(order)):
            self.filer._handle(kind, payload)
        self._its_end.shutdown(socket.SHUT_WR)
        data = b"".join(iter(lambda: self._socket.recv(1 << 16), b""))
        return [protocol.read_control(payload) for _, payload in decoder.feed(data)]

    def close(self) -> None:
        self._socket.close()
        self._its_end.close()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    made = Client(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("order", "answer"),
    [
        ("scan", {"type": "scanned", "entries": []}),
        ("read", {"type": "read_end"}),
        ("receive", {"type": "receive_failed"}),
        ("look", {"type": "looked", "folder": None}),
    ],
)
def test_a_failed_order_is_answered_with_an_error(
    client: Client, order: str, answer: dict[str, Any]
) -> None:
    (messages,) = client.order({"type": order, "id": 7})
    assert messages.pop("error").startswith("KeyError")
    assert messages == {**answer, "id": 7}


def test_a_failed_order_that_has_no_answer_sends_nothing(client: Client) -> None:
    assert client.order({"type": "got", "at": 1}) == []
