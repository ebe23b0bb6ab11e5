"""Files of another machine are copied unchanged, or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, cast

import pytest

from tfcluster.checkpoints.completeness import Entry
from tfcluster.checkpoints.copying import CancelledError, SourceChangedError
from tfcluster.wire.file_transfer import RemoteFileChangedError, RemoteFiles
from tfcluster.wire.remote_source import RemoteSource


@dataclass
class RemoteFile:
    """A file of a remote machine, which announces `digest` as its hash."""

    content: bytes
    digest: str = ""
    error: Exception | None = None
    starts: list[int] = field(default_factory=list)

    async def read(
        self, folder: str, path: str, take: Any, *, size: int, start: int, **_: object
    ) -> str:
        self.starts.append(start)
        requested = self.content[start:size]
        for at in range(0, len(requested), 3):
            await take(requested[at : at + 3])
        if self.error:
            raise self.error
        return self.digest or hashlib.sha512(requested).hexdigest()

    @property
    def entry(self) -> Entry:
        return Entry("a", len(self.content), len(self.content) * 10**9)


def with_source(remote: RemoteFile, do: Callable[[RemoteSource], Any]) -> Any:
    """Call `do` with the source in a thread beside the event loop; return its result."""

    async def run() -> Any:
        loop = asyncio.get_running_loop()
        files = lambda: cast(RemoteFiles, remote)  # noqa: E731
        made = RemoteSource(PurePosixPath("/there"), files, loop, lambda: None)
        return await asyncio.to_thread(do, made)

    return asyncio.run(run())


def test_a_copy_has_the_hash_and_the_time_of_the_original(tmp_path: Path) -> None:
    remote, target = RemoteFile(b"0123456789"), tmp_path / "below" / "a"
    digest = with_source(remote, lambda source: source.copy(remote.entry, target))
    assert target.read_bytes() == b"0123456789"
    assert digest == hashlib.sha512(b"0123456789").hexdigest()
    assert target.stat().st_mtime_ns == remote.entry.mtime_ns


@pytest.mark.parametrize(
    ("remote", "error"),
    [
        (RemoteFile(b"0123456789", digest="0" * 128), OSError),
        (RemoteFile(b"0123456789", error=RemoteFileChangedError("changed")), SourceChangedError),
    ],
    ids=["another hash", "changed"],
)
def test_a_copy_that_differs_is_removed(
    tmp_path: Path, remote: RemoteFile, error: type[Exception]
) -> None:
    with pytest.raises(error):
        with_source(remote, lambda source: source.copy(remote.entry, tmp_path / "a"))
    assert not (tmp_path / "a").exists()


def test_a_copy_can_be_cancelled(tmp_path: Path) -> None:
    remote = RemoteFile(b"0123456789")
    with pytest.raises(CancelledError):
        with_source(
            remote,
            lambda source: source.copy(remote.entry, tmp_path / "a", stopped=lambda: True),
        )
    assert not (tmp_path / "a").exists()


@dataclass
class Cut(RemoteFile):
    """A file whose link is cut after the first bytes."""

    async def read(self, folder: str, path: str, take: Any, **_: Any) -> str:
        await take(self.content[:3])
        await self.scan(folder)
        return ""

    async def scan(self, folder: str, **_: Any) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("what", ["scan", "check", "copy", "follow"])
def test_a_wait_over_a_cut_link_can_be_cancelled(tmp_path: Path, what: str) -> None:
    target, cut = tmp_path / "a", Cut(b"0123456789")
    target.write_bytes(b"ab")
    arguments: dict[str, Any] = {
        "copy": (cut.entry, target),
        "follow": (cut.entry, target),
        "check": ([],),
    }
    until = time.monotonic() + 0.3
    stopped = lambda: time.monotonic() > until  # noqa: E731

    def give_up(source: RemoteSource) -> None:
        with pytest.raises(CancelledError):
            getattr(source, what)(*arguments.get(what, ()), stopped=stopped)

    with_source(cut, give_up)
    assert target.read_bytes() == b"ab"
    assert [*tmp_path.iterdir()] == [target]


def test_only_the_new_part_of_a_growing_file_is_copied(tmp_path: Path) -> None:
    target = tmp_path / "events.out.tfevents.1"

    def follow(remote: RemoteFile) -> list[int]:
        with_source(remote, lambda source: source.follow(remote.entry, target))
        assert target.read_bytes() == remote.content
        return remote.starts

    assert follow(RemoteFile(b"0123")) == [0]
    assert follow(RemoteFile(b"0123")) == [], "unchanged"
    assert follow(RemoteFile(b"0123456")) == [4]
    assert follow(RemoteFile(b"xy")) == [0], "another file"


def test_a_new_part_with_a_wrong_hash_is_removed(tmp_path: Path) -> None:
    target = tmp_path / "events"
    target.write_bytes(b"0123")
    remote = RemoteFile(b"0123456789", digest="0" * 128)
    with pytest.raises(OSError, match="differs from"):
        with_source(remote, lambda source: source.follow(remote.entry, target))
    assert target.read_bytes() == b"0123"
