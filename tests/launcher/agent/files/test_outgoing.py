"""A node sends file listings of any length, and contents at a limited rate."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tfcluster.agent import catalogue as msg
from tfcluster.agent import protocol
from tfcluster.agent.files import outgoing
from tfcluster.agent.files.outgoing import Outgoing
from tfcluster.wire.file_trees import Announced


class Node:
    """The sending half of a file process, and the messages and bytes that it sent."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.sent: list[tuple[str, int, int]] = []
        self.outgoing = Outgoing(lambda report: self.messages.append(report.to_json()), self._send)

    def _send(self, name: str, offset: int, data: bytes) -> None:
        self.sent.append((name, offset, len(data)))

    def read(self, path: Path, number: int, **order: Any) -> None:
        found = path.stat()
        named = {"id": number, "folder": str(path.parent), "path": path.name, "offset": 0}
        listed = {"size": found.st_size, "mtime_ns": found.st_mtime_ns}
        self.outgoing.read(msg.Read.read({**named, **listed, **order}))

    def until(self, moment: float) -> int:
        """Take all turns due by `moment`; return the number of bytes sent."""
        before = len(self.sent)
        while self.outgoing.patience(moment) == 0:
            self.outgoing.turn(moment)
        return sum(size for _, _, size in self.sent[before:])


LONG = "\udcff" * 200
"""A name that is not UTF-8: JSON needs six characters for each of its bytes."""


def test_a_long_listing_is_split_into_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    def many(folder: str, inside: str, keep_alive: object) -> Iterator[tuple[str, int, int]]:
        yield from ((f"{number}{LONG}", 1, 2) for number in range(20_000))

    monkeypatch.setattr(outgoing, "walk", many)
    node = Node()
    node.outgoing.scan(msg.Scan(id=1, folder="/data", most=20_000))
    frames = [protocol.control_frame(messages) for messages in node.messages]
    assert sum(map(len, frames)) > protocol.MAX_PAYLOAD
    assert [bool(messages.get("more")) for messages in node.messages] == [True] * (
        len(frames) - 1
    ) + [False]
    names = [entry[0] for messages in node.messages for entry in messages["entries"]]
    assert names == [f"{number}{LONG}" for number in range(20_000)]


@pytest.mark.parametrize("most", [0, 1, 9])
def test_a_listing_stops_above_its_limit(tmp_path: Path, most: int) -> None:
    for name in range(10):
        (tmp_path / str(name)).touch()
    node = Node()
    node.outgoing.scan(msg.Scan(id=1, folder=str(tmp_path), most=most))
    assert node.messages == [{"type": "scanned", "id": 1, "entries": [], "left_off": True}]
    node.outgoing.scan(msg.Scan(id=2, folder=str(tmp_path), most=10))
    assert "left_off" not in node.messages[-1]
    assert len(node.messages[-1]["entries"]) == 10


def test_listing_and_hashing_send_signs_of_life(tmp_path: Path) -> None:
    """A sign of life follows each listed name and each piece that was sent before a reconnect."""
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a").write_bytes(bytes(1 << 20))
    keep_alive: list[int] = []
    messages: list[Any] = []
    busy = outgoing.Outgoing(messages.append, lambda *slices: None, keep_alive.append)
    busy.scan(msg.Scan(id=1, folder=str(tmp_path), most=9))
    assert keep_alive == [1] * 4
    found = (tmp_path / "below" / "a").stat()
    order = {"id": 2, "folder": str(tmp_path), "path": "below/a", "offset": 1 << 20}
    busy.read(msg.Read.read({**order, "size": 1 << 20, "mtime_ns": found.st_mtime_ns}))
    while not messages[1:]:
        busy.turn(1.0)
    assert keep_alive[4:] == [2] * 4


def test_a_long_order_is_split_into_frames() -> None:
    file = {"sha512": "0" * 128, "size": 1 << 40, "mode": 0o755, "mtime_ns": 1 << 60}
    entries = [msg.FileEntry.read({"path": f"{number}{LONG}", **file}) for number in range(20_000)]
    pages = list(Announced(entries, {}).pages())
    frames = [protocol.control_frame({"files": page}) for page in pages]
    assert sum(map(len, frames)) > protocol.MAX_PAYLOAD
    assert [entry for page in pages for entry in page] == entries
    assert list(Announced([], {}).pages()) == [[]]


def test_a_file_is_sent_no_faster_than_its_rate(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(4 << 20))
    node = Node()
    node.read(path, 1, rate=float(1 << 20))
    at_once = node.until(100.0)
    assert 0 < at_once <= 1 << 20
    assert node.until(101.0) <= (1 << 20) + (256 << 10)
    node.outgoing.hurry(msg.LiftRate(id=1))
    node.until(101.0)
    assert sum(size for _, _, size in node.sent) == 4 << 20
    assert node.messages[-1]["is_unchanged"]


def test_unacknowledged_bytes_stay_within_the_window(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(20 << 20))
    node = Node()
    node.read(path, 1)
    assert node.until(100.0) == 8 << 20
    assert node.outgoing.patience(200.0) is None
    node.outgoing.got(msg.Written(id=1, at=4 << 20))
    assert node.until(200.0) == 4 << 20


def test_bytes_sent_before_a_reconnect_are_only_hashed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(1 << 20))
    node = Node()
    node.read(path, 1)
    node.read(path, 2, offset=(1 << 20) - 10)
    node.until(100.0)
    whole, rest = node.messages
    assert whole["sha512"] == rest["sha512"]
    assert [size for name, _, size in node.sent if name == "2"] == [256 << 10]


def test_links_and_pipes_are_not_sent(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "link").symlink_to("a")
    node = Node()
    node.read(tmp_path / "link", 1)
    assert "error" in node.messages[-1]
    assert [path for path, _, _ in outgoing.walk(str(tmp_path), "")] == ["a"]


class Forbidden:
    """A directory entry in a folder that this user may read but not enter."""

    name, path = "b", "/there/b"

    def is_dir(self, **_: bool) -> bool:
        return False

    def is_file(self, **_: bool) -> bool:
        return True

    def stat(self, **_: bool) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied")


def test_unreadable_files_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "c").write_bytes(b"x")
    found = [*os.scandir(tmp_path), Forbidden()]
    monkeypatch.setattr(os, "scandir", lambda folder: contextlib.nullcontext(found))
    assert [path for path, _, _ in outgoing.walk(str(tmp_path), "")] == ["a", "c"]


def test_a_disk_error_is_not_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    scandir = os.scandir

    def fails(folder: str) -> Any:
        if folder.endswith("/a"):
            raise OSError(errno.EIO, "Input/output error")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", fails)
    with pytest.raises(OSError, match="Input/output"):
        list(outgoing.walk(str(tmp_path), ""))
