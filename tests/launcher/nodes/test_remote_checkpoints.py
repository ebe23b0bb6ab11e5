"""Files of another machine land here as they are there, or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, cast

import pytest

from tfcluster.checkpoints.completeness import Checkpoint, Entry, Kind
from tfcluster.checkpoints.copying import CancelledError, SourceChangedError
from tfcluster.checkpoints.store import Gathered
from tfcluster.nodes.remote_checkpoints import RemoteSource, trees
from tfcluster.wire.file_transfer import RemoteFileChangedError, RemoteFiles


@dataclass
class NodePaths:
    """One file of another machine; `digest` as that machine says it."""

    content: bytes
    digest: str = ""
    error: Exception | None = None
    asked: list[int] = field(default_factory=list)

    async def read(
        self, folder: str, path: str, take: Any, *, size: int, start: int, **_: object
    ) -> str:
        self.asked.append(start)
        wanted = self.content[start:size]
        for at in range(0, len(wanted), 3):
            await take(wanted[at : at + 3])
        if self.error:
            raise self.error
        return self.digest or hashlib.sha512(wanted).hexdigest()

    @property
    def entry(self) -> Entry:
        return Entry("a", len(self.content), len(self.content) * 10**9)


def source(there: NodePaths, do: Callable[[RemoteSource], Any]) -> Any:
    """What `do` returns, in a thread beside the loop."""

    async def run() -> Any:
        loop = asyncio.get_running_loop()
        files = lambda: cast(RemoteFiles, there)  # noqa: E731
        made = RemoteSource(PurePosixPath("/there"), files, loop, lambda: None)
        return await asyncio.to_thread(do, made)

    return asyncio.run(run())


def test_a_copy_has_the_hash_and_the_time_that_it_has_there(tmp_path: Path) -> None:
    there, target = NodePaths(b"0123456789"), tmp_path / "below" / "a"
    digest = source(there, lambda far: far.copy(there.entry, target))
    assert target.read_bytes() == b"0123456789"
    assert digest == hashlib.sha512(b"0123456789").hexdigest()
    assert target.stat().st_mtime_ns == there.entry.mtime_ns


@pytest.mark.parametrize(
    ("there", "error"),
    [
        (NodePaths(b"0123456789", digest="0" * 128), OSError),
        (NodePaths(b"0123456789", error=RemoteFileChangedError("changed")), SourceChangedError),
    ],
    ids=["another hash", "changed"],
)
def test_of_what_is_not_as_it_is_there_nothing_stays(
    tmp_path: Path, there: NodePaths, error: type[Exception]
) -> None:
    with pytest.raises(error):
        source(there, lambda far: far.copy(there.entry, tmp_path / "a"))
    assert not (tmp_path / "a").exists()


def test_a_copy_ends_when_it_is_to_stop(tmp_path: Path) -> None:
    there = NodePaths(b"0123456789")
    with pytest.raises(CancelledError):
        source(there, lambda far: far.copy(there.entry, tmp_path / "a", stopped=lambda: True))
    assert not (tmp_path / "a").exists()


@dataclass
class Cut(NodePaths):
    """Whose line is cut after the first bytes."""

    async def read(self, folder: str, path: str, take: Any, **_: Any) -> str:
        await take(self.content[:3])
        await self.scan(folder)
        return ""

    async def scan(self, folder: str, *, most: int = 0) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("what", ["scan", "check", "copy", "follow"])
def test_who_waits_for_a_line_that_is_cut_may_give_up(tmp_path: Path, what: str) -> None:
    target, cut = tmp_path / "a", Cut(b"0123456789")
    target.write_bytes(b"ab")
    arguments: dict[str, Any] = {
        "copy": (cut.entry, target),
        "follow": (cut.entry, target),
        "check": ([],),
    }
    until = time.monotonic() + 0.3
    stopped = lambda: time.monotonic() > until  # noqa: E731

    def give_up(far: RemoteSource) -> None:
        with pytest.raises(CancelledError):
            getattr(far, what)(*arguments.get(what, ()), stopped=stopped)

    source(cut, give_up)
    assert target.exists() == (what != "copy")
    assert what == "copy" or target.read_bytes() == b"ab"


def test_of_a_file_that_grows_only_the_new_comes(tmp_path: Path) -> None:
    target = tmp_path / "events.out.tfevents.1"

    def follow(there: NodePaths) -> list[int]:
        source(there, lambda far: far.follow(there.entry, target))
        assert target.read_bytes() == there.content
        return there.asked

    assert follow(NodePaths(b"0123")) == [0]
    assert follow(NodePaths(b"0123")) == [], "it is as it was"
    assert follow(NodePaths(b"0123456")) == [4]
    assert follow(NodePaths(b"xy")) == [0], "another file"


def test_a_tail_that_cannot_be_trusted_is_taken_off_again(tmp_path: Path) -> None:
    target = tmp_path / "events"
    target.write_bytes(b"0123")
    there = NodePaths(b"0123456789", digest="0" * 128)
    with pytest.raises(OSError, match="read back"):
        source(there, lambda far: far.follow(there.entry, target))
    assert target.read_bytes() == b"0123"


def test_what_is_sent_of_the_store_is_linked_and_not_copied(tmp_path: Path) -> None:
    home = tmp_path / "ckpt-1"
    home.mkdir()
    (home / "ckpt-1.index").write_bytes(b"index")
    (home / "ckpt-1.data-00000-of-00001").write_bytes(b"data")
    entries = (Entry("in/ckpt-1.data-00000-of-00001", 4, 1), Entry("in/ckpt-1.index", 5, 2))
    checkpoint = Checkpoint(Kind.TF_CHECKPOINT, "in/ckpt-1", entries, ())
    digests = ("d" * 128, "e" * 64)
    gathered = Gathered(home, 1, Kind.TF_CHECKPOINT, 9, checkpoint, home, digests)
    (tmp_path / "outgoing").mkdir()
    sent = {one.path: one for one in trees(tmp_path / "outgoing", [gathered])}
    assert sorted(sent) == ["in/checkpoint", *sorted(entry.path for entry in entries)]
    data = sent["in/ckpt-1.data-00000-of-00001"]
    assert data.source.samefile(home / "ckpt-1.data-00000-of-00001")
    assert (data.sha512, data.mtime_ns) == ("d" * 128, 1)
    assert b"ckpt-1" in sent["in/checkpoint"].source.read_bytes()
