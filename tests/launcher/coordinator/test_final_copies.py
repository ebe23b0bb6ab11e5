"""Work on a file system that stands still is given up, and nobody waits for its thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.coordinator.test_gathering import Here

from tfcluster.coordinator import final_copies
from tfcluster.coordinator.final_copies import StalledError, Threads
from tfcluster.coordinator.gathering import RunGathering
from tfcluster.plan.plan import CheckpointPlan
from tfcluster.rundir import events as ev
from tfcluster.rundir.paths import RunPaths


@pytest.fixture
def still() -> Iterator[threading.Event]:
    """Set at the end: no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()


def test_what_returns_or_raises_does_so() -> None:
    async def story() -> None:
        threads = Threads(lambda: 0)
        assert await threads.do(lambda: 7, "it") == 7
        with pytest.raises(ValueError, match="no"):
            await threads.do(lambda: int("no"), "it")

    asyncio.run(story())


def test_what_stands_still_is_given_up_and_not_waited_for(still: threading.Event) -> None:
    async def story() -> None:
        threads = Threads(lambda: 0, silence_s=0.2)
        with pytest.raises(StalledError, match=r"it has not moved for 0 s: a file system of this"):
            await threads.do(still.wait, "it")
        assert await threads.do(lambda: 7, "another") == 7

    asyncio.run(story())
    assert not still.is_set(), "the loop has ended without the thread"


def test_what_moves_may_take_its_time(still: threading.Event) -> None:
    pieces = iter(range(1_000_000))

    async def story() -> str:
        threads = Threads(lambda: next(pieces), silence_s=0.2)

        def slow() -> str:
            time.sleep(0.6)
            return "done"

        return await threads.do(slow, "it")

    assert asyncio.run(story()) == "done"


def test_a_dead_folder_for_results_ends_no_run_in_silence(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, still: threading.Event
) -> None:
    """`checkpoints.to` on a file server that is gone: `up` waited for ever."""
    monkeypatch.setattr(final_copies, "deliver", lambda *_, **__: still.wait())
    plan = replace(plan_of(), workdir=str(tmp_path), checkpoints=CheckpointPlan(to="/mnt/results"))
    run_gathering = RunGathering(plan, paths)
    run_gathering._threads._silence_s = 0.2
    run_gathering.use(Here(paths))  # type: ignore[arg-type]
    run_gathering.heed(plan.chief)
    (said,) = asyncio.run(run_gathering.finish())
    assert isinstance(said, ev.Warned)
    assert "the last copying has not moved for" in said.message
    assert run_gathering.lacks_something
    assert run_gathering.gathering() is None
