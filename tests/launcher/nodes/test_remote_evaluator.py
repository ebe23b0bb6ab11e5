"""A remote evaluator gets new checkpoints and does not delay gathering."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, cast

import pytest

from tfcluster.checkpoints.completeness import Checkpoint, Entry, Kind
from tfcluster.checkpoints.copying import CancelledError
from tfcluster.checkpoints.store import Gathered
from tfcluster.nodes import remote_checkpoints
from tfcluster.nodes.remote_checkpoints import RemoteFollower
from tfcluster.wire.file_sending import RemoteFilesError
from tfcluster.wire.file_transfer import RemoteFiles
from tfcluster.wire.file_trees import Sent


class Host:
    """A remote machine whose link is cut until `is_back` is set."""

    def __init__(self) -> None:
        self.is_back = asyncio.Event()
        self.error: Exception | None = None
        self.added: list[list[str]] = []

    async def scan(self, folder: str) -> list[tuple[str, int, int]]:
        await self.is_back.wait()
        return []

    async def add_files(self, into: str, files: Sequence[Sent], *, removed: Sequence[str]) -> int:
        if self.error is not None:
            raise self.error
        self.added.append([file.path for file in files])
        return 0


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_checkpoints, "_PATIENCE_S", 0.3)


@pytest.fixture
def held(tmp_path: Path) -> list[Gathered]:
    stored = tmp_path / "model.h5"
    stored.mkdir()
    (stored / "model.h5").write_bytes(b"data")
    checkpoint = Checkpoint(Kind.WEIGHTS, "model.h5", (Entry("model.h5", 4, 1),), ())
    return [Gathered(checkpoint, stored, 1, ("d" * 64,), 1)]


def run_scenario(
    tmp_path: Path, scenario: Callable[[Host, RemoteFollower, Callable[[], None]], Any]
) -> None:
    """Run `scenario` in a thread beside the event loop; its last argument restores the link."""

    async def run() -> None:
        host, loop = Host(), asyncio.get_running_loop()
        files = lambda: cast(RemoteFiles, host)  # noqa: E731
        follower = RemoteFollower(PurePosixPath("/there"), files, loop=loop, beside=tmp_path)

        def back() -> None:
            loop.call_soon_threadsafe(host.is_back.set)

        await asyncio.to_thread(scenario, host, follower, back)

    asyncio.run(run())
    assert not [*tmp_path.glob(".outgoing-*")]


def follow_until(condition: Callable[[], bool], follow: Callable[[], None]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        follow()
        time.sleep(0.01)


def test_only_the_first_call_waits_for_a_cut_link(tmp_path: Path, held: list[Gathered]) -> None:
    def scenario(host: Host, follower: RemoteFollower, back: Callable[[], None]) -> None:
        follower.follow(held)
        follower.follow(held)
        assert host.added == []
        back()
        follow_until(lambda: follower._placed == held, lambda: follower.follow(held))
        follower.follow(held)
        assert host.added == [["model.h5"]]

    run_scenario(tmp_path, scenario)


def test_a_later_failure_is_raised_and_the_next_call_tries_again(
    tmp_path: Path, held: list[Gathered]
) -> None:
    def scenario(host: Host, follower: RemoteFollower, back: Callable[[], None]) -> None:
        host.error = RemoteFilesError("No space left on device")
        follower.follow(held)
        back()
        with pytest.raises(OSError, match="No space"):
            follow_until(lambda: False, lambda: follower.follow(held))
        host.error = None
        follower.follow(held)
        assert host.added == [["model.h5"]]

    run_scenario(tmp_path, scenario)


def test_a_long_transfer_can_be_cancelled_by_a_later_call(
    tmp_path: Path, held: list[Gathered]
) -> None:
    def scenario(host: Host, follower: RemoteFollower, back: Callable[[], None]) -> None:
        follower.follow(held)
        with pytest.raises(CancelledError):
            follower.follow(held, stopped=lambda: True)
        back()
        assert host.added == []

    run_scenario(tmp_path, scenario)


def test_a_wait_can_be_cancelled(tmp_path: Path, held: list[Gathered]) -> None:
    def scenario(host: Host, follower: RemoteFollower, back: Callable[[], None]) -> None:
        with pytest.raises(CancelledError):
            follower.follow(held, stopped=lambda: True)
        back()
        follower.follow(held)
        assert host.added == [["model.h5"]]

    run_scenario(tmp_path, scenario)
