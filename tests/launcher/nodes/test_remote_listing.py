"""A listing from another machine is somebody else's text: it names places here, and no others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from tfcluster.checkpoints.copying import SourceChangedError
from tfcluster.nodes.remote_checkpoints import RemoteSource
from tfcluster.wire.file_transfer import RemoteFiles

CONTENT = b"evil"
OUTSIDE = [
    "../up", "a/../../up", "/etc/passwd", "//x", "a//b", "./a", "a/.", "..", ".", "", "a/..",
    "nul\0byte", "../", "a/../",
]  # fmt: skip
INSIDE = ["a", "deep/er/b", "..hidden", "odd\nname", "a b", "\\..\\x", "...", "é"]


class Hostile(RemoteFiles):
    """A node that lists whatever it likes, and sends the same for all of it."""

    def __init__(self, listing: list[str]) -> None:
        super().__init__(self._obey, self._ignore)
        self._listing = listing

    async def _obey(self, order: dict[str, Any]) -> None:
        number = order["id"]
        if order["type"] == "scan":
            entries = [[path, len(CONTENT), 1] for path in self._listing]
            self.handle({"type": "scanned", "id": number, "entries": entries})
        if order["type"] == "read":
            self.handle({"type": "file", "name": str(number), "offset": 0, "data": CONTENT})
            wrong = {"sha512": "0" * 128, "is_unchanged": True}
            self.handle({"type": "read_end", "id": number, **wrong})

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


def test_names_that_lead_out_of_the_folder_are_passed_over(
    loop: asyncio.AbstractEventLoop,
) -> None:
    found = [entry.path for entry in source(loop, [*OUTSIDE, *INSIDE]).scan()]
    assert found == INSIDE


def test_a_listing_that_failed_is_not_an_empty_one(loop: asyncio.AbstractEventLoop) -> None:
    class Failing(Hostile):
        async def _obey(self, order: dict[str, Any]) -> None:
            failed = {"entries": [], "error": "OSError: Input/output error"}
            self.handle({"type": "scanned", "id": order["id"], **failed})

    node = Failing([])
    with pytest.raises(OSError, match="/there: OSError: Input/output error"):
        RemoteSource(PurePosixPath("/there"), lambda: node, loop, lambda: None).scan()


def test_a_file_that_is_not_what_the_node_says_does_not_stay(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    far = source(loop, INSIDE)
    for entry in far.scan():
        with pytest.raises(OSError, match="is not what"):
            far.copy(entry, tmp_path / "home" / entry.path)
    assert not [path for path in tmp_path.rglob("*") if not path.is_dir()]


def test_a_link_here_leads_nothing_that_comes_elsewhere(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/a").symlink_to(tmp_path / "precious")
    far = source(loop, ["a"])
    (entry,) = far.scan()
    with pytest.raises(OSError, match=r"Too many levels|is not what"):
        far.copy(entry, tmp_path / "home/a")
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_name_that_is_file_and_folder_is_an_error_of_that_file(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    far = source(loop, ["a", "a/b"])
    (tmp_path / "a").write_text("came first")
    with pytest.raises((OSError, SourceChangedError)):
        far.copy(far.scan()[1], tmp_path / "a/b")
    assert (tmp_path / "a").read_text() == "came first"
