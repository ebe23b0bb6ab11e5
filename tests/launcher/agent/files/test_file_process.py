"""The file process answers a failed order with an error and keeps running."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tfcluster.agent import catalogue as msg
from tfcluster.agent import protocol
from tfcluster.agent.files.file_process import FileProcess

BAD = "/a\0b/c/d/e"
"""A name that no system call takes."""


class Client:
    """A file process and the messages that it sends to its agent."""

    def __init__(self, folder: Path) -> None:
        self._socket, its_end = socket.socketpair()
        self._its_end = its_end
        end = its_end.fileno()
        self.filer = FileProcess(end, end, str(folder / "cache"), str(folder / "passing"))

    def order(self, order: msg.FileOrder) -> list[dict[str, Any]]:
        decoder = protocol.Decoder()
        for kind, payload in decoder.feed(protocol.control_frame(order.to_json())):
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
    "order",
    [
        msg.Scan(id=7, folder=BAD, most=1),
        msg.Read(id=7, folder=BAD, path="a", size=1, mtime_ns=1),
        msg.Receive(id=7, into=BAD, files=[]),
        msg.FindMarkedFolder(id=7, folders=[BAD], name="a", text="", inode=1),
    ],
    ids=lambda message: message.type,
)
def test_a_failed_order_is_answered_with_an_error(client: Client, order: msg.FileOrder) -> None:
    found = client.order(order)[-1]
    assert (found["type"], found["id"]) == ("file_failed", 7)
    assert found["error"].startswith("ValueError")
