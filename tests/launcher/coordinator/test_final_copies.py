"""The coordinator gives up work on a file system that hangs, and does not wait for its thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.coordinator.test_gathering import LocalFolders

from tfcluster.coordinator import gathering
from tfcluster.coordinator.gathering import FileThreads, RunGathering, StalledError
from tfcluster.plans.plan import CheckpointPlan
from tfcluster.rundir import events as ev
from tfcluster.rundir.paths import RunPaths


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Yield an event that is set at the end, so that no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()


def test_work_returns_its_value_or_raises_its_error() -> None:
    async def scenario() -> None:
        threads = FileThreads(lambda: 0)
        assert await threads.run(lambda: 7, "it") == 7
        with pytest.raises(ValueError, match="no"):
            await threads.run(lambda: int("no"), "it")

    asyncio.run(scenario())


def test_work_without_progress_is_given_up_and_not_waited_for(release: threading.Event) -> None:
    async def scenario() -> None:
        threads = FileThreads(lambda: 0, silence_s=0.2)
        with pytest.raises(
            StalledError, match=r"it has made no progress for 0 s: a file system of this"
        ):
            await threads.run(release.wait, "it")
        assert await threads.run(lambda: 7, "another") == 7

    asyncio.run(scenario())
    assert not release.is_set(), "the loop ended before the thread"


def test_closed_threads_end_and_one_that_hangs_is_not_waited_for(release: threading.Event) -> None:
    async def scenario() -> list[threading.Thread]:
        before, threads = set(threading.enumerate()), FileThreads(lambda: 0, silence_s=0.2)
        with pytest.raises(StalledError):
            await threads.run(release.wait, "it")
        await threads.run(lambda: 7, "another")
        threads.close()
        return [one for one in threading.enumerate() if one not in before]

    made = asyncio.run(scenario())
    assert len(made) == 2
    made[1].join(60)
    assert [thread.is_alive() for thread in made] == [True, False]


def test_slow_work_that_makes_progress_is_waited_for(release: threading.Event) -> None:
    pieces = iter(range(1_000_000))

    async def scenario() -> str:
        threads = FileThreads(lambda: next(pieces), silence_s=0.2)

        def slow() -> str:
            time.sleep(0.6)
            return "done"

        return await threads.run(slow, "it")

    assert asyncio.run(scenario()) == "done"


def test_a_folder_for_results_that_hangs_is_reported(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: threading.Event
) -> None:
    """`up` used to wait forever for a `checkpoints.to` on a dead file server."""
    monkeypatch.setattr(gathering, "deliver", lambda *_, **__: release.wait())
    plan = replace(plan_of(), workdir=str(tmp_path), checkpoints=CheckpointPlan(to="/mnt/results"))
    run_gathering = RunGathering(plan, paths)
    run_gathering._threads._silence_s = 0.2
    run_gathering.use(LocalFolders(paths))  # type: ignore[arg-type]
    run_gathering.follow_chief(plan.chief)
    (warning,) = asyncio.run(run_gathering.finish())
    assert isinstance(warning, ev.Warned)
    assert "the final copying has made no progress for" in warning.message
    assert run_gathering.is_incomplete
    assert run_gathering.gathering() is None
