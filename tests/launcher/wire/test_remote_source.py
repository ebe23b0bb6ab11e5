"""Files of another machine, which is not trusted, are copied unchanged and whole, or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from tfcluster.agent import catalogue as msg
from tfcluster.checkpoints.copying import CancelledError, SourceChangedError
from tfcluster.checkpoints.recognition import Entry
from tfcluster.wire.file_transfer import RemoteFiles
from tfcluster.wire.messages import FileSlice
from tfcluster.wire.remote_source import RemoteFolder, RemoteSource

OUTSIDE = [
    "../up", "a/../../up", "/etc/passwd", "//x", "a//b", "./a", "a/.", "..", ".", "", "a/..",
    "nul\0byte", "../", "a/../",
]  # fmt: skip
INSIDE = ["a", "deep/er/b", "..hidden", "odd\nname", "a b", "\\..\\x", "...", "é"]


class Node(RemoteFiles):
    """A node with the same content under each name that it lists."""

    def __init__(self, content: bytes = b"0123456789", *names: str) -> None:
        super().__init__(self._obey, self._refuse)
        self.content, self.names = content, names or ("a",)
        self.digest = self.failure = ""
        """What it says instead of the right digest, and why it cannot read a file to its end."""
        self.is_cut = False
        """True if its link is cut after three bytes of a file, and instead of a list."""
        self.starts: list[int] = []

    @property
    def entry(self) -> Entry:
        return Entry("a", len(self.content), len(self.content) * 10**9)

    async def _refuse(self, name: str, offset: int, data: bytes) -> None:
        raise AssertionError

    async def _obey(self, order: msg.FileOrder) -> None:
        match order:
            case msg.Scan() if not self.is_cut:
                entries = [(name, len(self.content), 1) for name in self.names]
                self.handle(msg.Scanned(id=order.id, entries=entries))
            case msg.Read(id=number, start=start, offset=offset, size=size):
                self.starts.append(offset)
                for at in range(offset, min(size, offset + 3 if self.is_cut else size), 3):
                    data = self.content[at : at + 3]
                    self.handle(FileSlice(name=str(number), offset=at, data=data))
                if self.failure:
                    self.handle(msg.FileFailed(id=number, error=self.failure))
                elif not self.is_cut:
                    digest = self.digest or hashlib.sha512(self.content[start:size]).hexdigest()
                    self.handle(msg.ReadEnd(id=number, sha512=digest, is_unchanged=True))


def with_source(node: Node, do: Callable[[RemoteSource], Any]) -> Any:
    """Call `do` with the source in a thread beside the event loop; return its result."""

    async def run() -> Any:
        loop = asyncio.get_running_loop()
        source = RemoteSource(PurePosixPath("/there"), lambda: node, loop, lambda: None)
        return await asyncio.to_thread(do, source)

    return asyncio.run(run())


def copy(node: Node, target: Path) -> str:
    digest: str = with_source(node, lambda source: source.copy(node.entry, target))
    return digest


def test_a_copy_has_the_hash_and_the_time_of_the_original(tmp_path: Path) -> None:
    node, target = Node(), tmp_path / "below" / ("a" * 255)
    assert copy(node, target) == hashlib.sha512(b"0123456789").hexdigest()
    assert target.read_bytes() == b"0123456789"
    assert target.stat().st_mtime_ns == node.entry.mtime_ns


@pytest.mark.parametrize("what", ["another hash", "changed", "cancelled"])
def test_a_copy_that_fails_leaves_what_was_there(tmp_path: Path, what: str) -> None:
    (tmp_path / "a").write_bytes(b"before")
    node = Node()
    node.digest = "0" * 128 if what == "another hash" else ""
    node.failure = "it was rewritten" if what == "changed" else ""
    with pytest.raises((OSError, SourceChangedError, CancelledError)) as failed:
        with_source(
            node,
            lambda source: source.copy(
                node.entry, tmp_path / "a", stopped=lambda: what == "cancelled"
            ),
        )
    expected = {"another hash": OSError, "changed": SourceChangedError, "cancelled": CancelledError}
    assert failed.type is expected[what]
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"before")]


@pytest.mark.parametrize("what", ["scan", "check", "copy", "follow"])
def test_a_wait_over_a_cut_link_can_be_cancelled(tmp_path: Path, what: str) -> None:
    target, node = tmp_path / "a", Node()
    node.is_cut = True
    target.write_bytes(b"ab")
    arguments: dict[str, Any] = {"scan": (), "check": ([],)}
    until = time.monotonic() + 0.3

    def give_up(source: RemoteSource) -> None:
        with pytest.raises(CancelledError):
            getattr(source, what)(
                *arguments.get(what, (node.entry, target)),
                stopped=lambda: time.monotonic() > until,
            )

    with_source(node, give_up)
    assert target.read_bytes() == b"ab"
    assert [*tmp_path.iterdir()] == [target]


def test_only_the_new_part_of_a_growing_file_is_copied(tmp_path: Path) -> None:
    target = tmp_path / "events.out.tfevents.1"

    def follow(content: bytes) -> list[int]:
        node = Node(content)
        with_source(node, lambda source: source.follow(node.entry, target))
        assert target.read_bytes() == content
        return node.starts

    assert follow(b"0123") == [0]
    assert follow(b"0123") == [], "unchanged"
    assert follow(b"0123456") == [4]
    assert follow(b"xy") == [0], "another file"
    node = Node(b"xy and more")
    node.digest = "0" * 128
    with pytest.raises(OSError, match="differs from"):
        with_source(node, lambda source: source.follow(node.entry, target))
    assert target.read_bytes() == b"xy"


def test_a_copy_goes_on_where_the_connection_was_lost(tmp_path: Path) -> None:
    def has_bytes() -> bool:
        return any(path.stat().st_size for path in tmp_path.iterdir())

    async def copy_twice() -> None:
        for is_cut in (True, False):
            node = Node()
            node.is_cut = is_cut
            copying = RemoteFolder(node, "/there").copy(node.entry, tmp_path / "a", resumes=True)
            task = asyncio.create_task(copying)
            while is_cut and not has_bytes():  # noqa: ASYNC110 (files send no events)
                await asyncio.sleep(0.01)
            if is_cut:
                node.mark_lost()
            await asyncio.wait([task])
            assert (task.exception() is None) is not is_cut
        assert node.starts == [3]

    asyncio.run(copy_twice())
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"0123456789"]


def test_names_that_lead_out_of_the_folder_are_skipped() -> None:
    node = Node(b"evil", *OUTSIDE, *INSIDE)
    found = with_source(node, lambda source: source.scan())
    assert [entry.path for entry in found] == INSIDE


def test_a_local_symlink_does_not_redirect_a_copy(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "a").symlink_to(tmp_path / "precious")
    copy(Node(), tmp_path / "a")
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_a_name_that_is_both_file_and_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("came first")
    with pytest.raises(OSError, match="a"):
        copy(Node(), tmp_path / "a" / "b")
    assert (tmp_path / "a").read_text() == "came first"
