"""A listing from another machine is not trusted: its names must stay inside the target folder."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from tfcluster.agent import catalogue as msg
from tfcluster.checkpoints.copying import SourceChangedError
from tfcluster.wire.file_transfer import RemoteFiles
from tfcluster.wire.messages import FileSlice
from tfcluster.wire.remote_source import RemoteSource

CONTENT = b"evil"
OUTSIDE = [
    "../up", "a/../../up", "/etc/passwd", "//x", "a//b", "./a", "a/.", "..", ".", "", "a/..",
    "nul\0byte", "../", "a/../",
]  # fmt: skip
INSIDE = ["a", "deep/er/b", "..hidden", "odd\nname", "a b", "\\..\\x", "...", "é"]


class Hostile(RemoteFiles):
    """A node that lists arbitrary names and sends the same content for each of them."""

    def __init__(self, listing: list[str]) -> None:
        super().__init__(self._obey, self._ignore)
        self._listing = listing

    async def _obey(self, order: msg.FileOrder) -> None:
        if isinstance(order, msg.Scan):
            entries = [(path, len(CONTENT), 1) for path in self._listing]
            self.handle(msg.Scanned(id=order.id, entries=entries))
        if isinstance(order, msg.Read):
            self.handle(FileSlice(name=str(order.id), offset=0, data=CONTENT))
            self.handle(msg.ReadEnd(id=order.id, sha512="0" * 128, is_unchanged=True))

    async def _ignore(self, name: str, offset: int, data: bytes) -> None:
        raise AssertionError


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


def source(loop: asyncio.AbstractEventLoop, listing: list[str]) -> RemoteSource:
    node = Hostile(listing)
    return RemoteSource(PurePosixPath("/there"), lambda: node, loop, lambda: None)


def test_names_that_lead_out_of_the_folder_are_skipped(
    loop: asyncio.AbstractEventLoop,
) -> None:
    found = [entry.path for entry in source(loop, [*OUTSIDE, *INSIDE]).scan()]
    assert found == INSIDE


def test_a_failed_listing_is_an_error_not_an_empty_listing(
    loop: asyncio.AbstractEventLoop,
) -> None:
    class Failing(Hostile):
        async def _obey(self, order: msg.FileOrder) -> None:
            why = "OSError: Input/output error"
            self.handle(msg.FileFailed(id=order.id, error=why))

    node = Failing([])
    with pytest.raises(OSError, match="/there: OSError: Input/output error"):
        RemoteSource(PurePosixPath("/there"), lambda: node, loop, lambda: None).scan()


def test_a_file_whose_hash_differs_from_the_announced_one_is_removed(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    remote = source(loop, INSIDE)
    for entry in remote.scan():
        with pytest.raises(OSError, match="differs from"):
            remote.copy(entry, tmp_path / "home" / entry.path)
    assert not [path for path in tmp_path.rglob("*") if not path.is_dir()]


def test_a_local_symlink_does_not_redirect_a_copy(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/a").symlink_to(tmp_path / "precious")
    remote = source(loop, ["a"])
    (entry,) = remote.scan()
    with pytest.raises(OSError, match=r"Too many levels|differs from"):
        remote.copy(entry, tmp_path / "home/a")
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_name_that_is_both_file_and_folder_is_an_error(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    remote = source(loop, ["a", "a/b"])
    (tmp_path / "a").write_text("came first")
    with pytest.raises((OSError, SourceChangedError)):
        remote.copy(remote.scan()[1], tmp_path / "a/b")
    assert (tmp_path / "a").read_text() == "came first"
