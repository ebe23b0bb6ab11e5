"""An order that fails costs its own answer, and not the node."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tfcluster.agent import protocol
from tfcluster.agent.files.file_process import FileProcess


class Beside:
    """What an agent hears of the process beside it."""

    def __init__(self, folder: Path) -> None:
        self._socket, its_end = socket.socketpair()
        self._its_end = its_end
        self.filer = FileProcess(its_end, str(folder / "cache"), str(folder / "passing"))

    def hears_of(self, order: dict[str, Any]) -> list[dict[str, Any]]:
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
def beside(tmp_path: Path) -> Iterator[Beside]:
    made = Beside(tmp_path)
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
def test_who_asked_hears_that_it_failed(beside: Beside, order: str, answer: dict[str, Any]) -> None:
    (said,) = beside.hears_of({"type": order, "id": 7})
    assert said.pop("error").startswith("KeyError")
    assert said == {**answer, "id": 7}


def test_what_nobody_waits_for_fails_in_silence(beside: Beside) -> None:
    assert beside.hears_of({"type": "got", "at": 1}) == []
