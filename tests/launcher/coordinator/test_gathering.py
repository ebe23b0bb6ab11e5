"""What is brought home and put back where the disk, or somebody who saves, does not keep still."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from tests.launcher.checkpoints.files import write_prefix
from tests.launcher.conftest import plan_of

from tfcluster.checkpoints import restore
from tfcluster.checkpoints.completeness import Checkpoint, Entry, Kind, Newest
from tfcluster.checkpoints.copying import CancelledError, SourceChangedError, Stopped
from tfcluster.checkpoints.restore import PutBack
from tfcluster.checkpoints.store import Gathered
from tfcluster.coordinator.gathering import RunGathering
from tfcluster.errors import RunFolderError
from tfcluster.plan.plan import TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event
from tfcluster.rundir.paths import RunPaths

NOTHING = Checkpoint(Kind.TF_CHECKPOINT, "ckpt-1", (), ())
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def run_gathering(paths: RunPaths, tmp_path: Path) -> RunGathering:
    plan = plan_of()
    made = RunGathering(replace(plan, workdir=str(tmp_path)), paths)
    made.use(Here(paths))  # type: ignore[arg-type]
    made.heed(plan.chief)
    return made


class There:
    """What another machine has in the chief's folder, if it can be asked."""

    folder = PurePosixPath("/there/worker-0")

    def __init__(self, *has: Entry, error: OSError | None = None) -> None:
        self._has, self._error = has, error

    def scan(self, **_: Any) -> tuple[Entry, ...]:
        if self._error is not None:
            raise self._error
        return self._has


class Here:
    """Folders of a run on this machine alone."""

    are_far = False

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths

    def checkpoints(self, task: TaskId) -> Path:
        return self._paths.task_checkpoints(task)

    def follower(self, task: TaskId) -> Path:
        return self._paths.task_checkpoints(task)

    def hurry(self) -> None:
        """Nothing here takes long."""

    def have_time(self) -> None:
        """Nor does it disturb."""

    def bring_tensorboard(self, *, stopped: Stopped) -> dict[str, Any]:
        """It is here."""
        return {}

    def is_far(self, node: str) -> bool:
        return False

    def workdir(self, task: TaskId) -> Path:
        return self._paths.root

    async def put_back(self, state: Sequence[Gathered], tasks: Iterable[TaskId]) -> PutBack:
        return PutBack(None, (), ())


def failing(monkeypatch: pytest.MonkeyPatch, errors: Sequence[Exception]) -> None:
    """Putting back meets these, one at a time, and then nothing any more."""
    left = list(errors)

    async def put_back(*_: Any) -> PutBack:
        if left:
            raise left.pop(0)
        return PutBack(7, (), ())

    monkeypatch.setattr(Here, "put_back", put_back)


def test_what_was_rotated_away_while_it_was_copied_is_tried_again(
    run_gathering: RunGathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, [SourceChangedError("ckpt-1"), FileNotFoundError("ckpt-2")])
    assert asyncio.run(run_gathering.put_state_back([])).step == 7


def test_a_disk_that_stays_full_is_no_fault_of_tfcluster(
    run_gathering: RunGathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, [FULL] * 3)
    with pytest.raises(RunFolderError, match="No space left"):
        asyncio.run(run_gathering.put_state_back([]))


def test_a_look_that_fails_is_told_of_once_and_ends_nothing(
    run_gathering: RunGathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather_last() -> list[Any]:
        raise FULL

    monkeypatch.setattr(run_gathering._gatherer, "gather_last", gather_last)
    seen: list[Event] = []
    for _ in range(3):
        seen += asyncio.run(run_gathering.bring_home())
    assert [type(event) for event in seen] == [ev.Warned]
    (closing,) = asyncio.run(run_gathering.finish())
    assert isinstance(closing, ev.Warned)
    assert closing.message == (
        "the last checkpoints of worker:0 were not gathered: [Errno 28] No space left on device"
    )
    assert run_gathering.lacks_something, (
        "also where the same was said before: folders elsewhere stay"
    )


@pytest.mark.parametrize(
    ("there", "stays"),
    [
        (There(Entry("model.keras", 9, 1)), True),
        (There(Entry("notes.txt", 9, 1)), False),
        (There(error=OSError("the line is cut")), True),
    ],
)
def test_what_nobody_wants_at_home_is_not_removed_where_it_is(
    paths: RunPaths, tmp_path: Path, there: There, stays: bool
) -> None:
    plan = plan_of()
    run_gathering = RunGathering(replace(plan, workdir=str(tmp_path)), paths, wanted=False)
    folders = Here(paths)
    folders.checkpoints = lambda task: there  # type: ignore[assignment, method-assign, return-value]
    run_gathering.use(folders)  # type: ignore[arg-type]
    run_gathering.heed(plan.chief)

    (*told,) = asyncio.run(run_gathering.finish())

    assert run_gathering.lacks_something is stays
    words = "checkpoints stay on local: to fetch them, scp -r local:/there/worker-0 ."
    assert [event.to_json()["message"] for event in told] == [words] * stays


def test_an_attempt_starts_from_the_step_that_was_told_last(
    run_gathering: RunGathering, paths: RunPaths
) -> None:
    """The copy is made before the task's word comes, which is before the word of its end."""
    chief = paths.task_checkpoints(run_gathering._plan.chief)
    write_prefix(chief, "ckpt-2")
    asyncio.run(run_gathering.bring_home())
    assert run_gathering.newest == Newest(None, "ckpt-2")
    run_gathering.saved(str(chief / "ckpt-2"), 10, time.time_ns())
    (told,) = asyncio.run(run_gathering.bring_home())
    assert run_gathering.newest == Newest(10, "ckpt-2")
    assert told.to_json()["step"] == 10
    assert [one["step"] for one in run_gathering.held()] == [10]


def shared_harvest(paths: RunPaths, storage: str) -> RunGathering:
    plan = plan_of()
    return RunGathering(replace(plan, checkpoints=replace(plan.checkpoints, dir=storage)), paths)


def test_shared_storage_that_cannot_be_read_ends_no_run(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the file server was an internal error (exit 70) of the restart."""

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(restore, "scan", fails)
    run_gathering = shared_harvest(paths, str(tmp_path))
    run_gathering.saved(str(tmp_path / "ckpt-3"), 3)
    (told,) = asyncio.run(run_gathering.bring_home())
    assert told.to_json()["message"] == (
        "checkpoints.dir cannot be read: [Errno 5] Input/output error"
    )
    assert run_gathering.newest == Newest(3, "ckpt-3"), "what the chief has said"


def test_of_a_backup_in_shared_storage_counts_the_step_that_the_chief_told(
    paths: RunPaths, tmp_path: Path
) -> None:
    backup = tmp_path / "shared" / "backup"
    backup.mkdir(parents=True)
    for name in ("latest.weights.h5", "training_metadata.json"):
        (backup / name).write_text("{}")
    run_gathering = shared_harvest(paths, str(backup.parent))
    asyncio.run(run_gathering.bring_home())
    assert run_gathering.newest == Newest(None, "backup")
    run_gathering.saved(str(backup), 120)
    asyncio.run(run_gathering.bring_home())
    assert run_gathering.newest == Newest(120, "backup")


def test_of_storage_that_is_no_mount_the_last_step_told_counts(paths: RunPaths) -> None:
    run_gathering = shared_harvest(paths, "gs://bucket/exp7")
    asyncio.run(run_gathering.bring_home())
    assert run_gathering.newest == Newest()
    run_gathering.saved("gs://bucket/exp7/ckpt-3", 375)
    asyncio.run(run_gathering.bring_home())
    assert run_gathering.newest == Newest(375, "ckpt-3")


def test_what_was_found_while_the_run_ended_is_told(
    run_gathering: RunGathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Gathered(
        run_gathering._paths.checkpoints / "ckpt-1", 1, Kind.TF_CHECKPOINT, 0, NOTHING, Path(), ()
    )
    began, go_on = threading.Event(), threading.Event()

    def look() -> list[Gathered]:
        began.set()
        go_on.wait(20)
        return [found]

    monkeypatch.setattr(run_gathering._gatherer, "gather", look)
    monkeypatch.setattr(run_gathering._gatherer, "gather_last", list)

    async def end_meanwhile() -> list[Event]:
        following = asyncio.create_task(run_gathering.follow(lambda event: None))
        run_gathering.saved("ckpt-1", 1)
        await asyncio.to_thread(began.wait, 20)
        following.cancel()
        go_on.set()
        await asyncio.wait([following])
        while not run_gathering._found:  # noqa: ASYNC110 (a thread fills it)
            await asyncio.sleep(0.01)
        return await run_gathering.finish()

    assert [type(event) for event in asyncio.run(end_meanwhile())] == [ev.CheckpointGathered]


def test_where_the_last_look_breaks_nothing_is_taken_for_brought_home(
    run_gathering: RunGathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather_last() -> list[Any]:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(run_gathering._gatherer, "gather_last", gather_last)
    with pytest.raises(ValueError, match="ours"):
        asyncio.run(run_gathering.finish())
    assert run_gathering.lacks_something


@pytest.mark.parametrize("within_a_copy", [True, False])
def test_what_was_cut_short_lacks_something_and_its_folders_stay(
    run_gathering: RunGathering, monkeypatch: pytest.MonkeyPatch, within_a_copy: bool
) -> None:
    def cut() -> list[Gathered]:
        run_gathering.cancel()
        if within_a_copy:  # the gatherer says nothing of what it was told to leave
            return []
        raise CancelledError

    monkeypatch.setattr(run_gathering._gatherer, "gather_last", cut)
    (said,) = asyncio.run(run_gathering.finish())
    assert isinstance(said, ev.Warned)
    assert "cut short by Ctrl-C" in said.message
    assert run_gathering.lacks_something


def test_an_attempt_that_ended_before_it_was_ordered_has_nothing_to_bring_home(
    paths: RunPaths, tmp_path: Path
) -> None:
    """Its node was lost while the state was put back."""
    run_gathering = RunGathering(replace(plan_of(), workdir=str(tmp_path)), paths)
    run_gathering.use(Here(paths))  # type: ignore[arg-type]
    assert asyncio.run(run_gathering.bring_home()) == []
    assert asyncio.run(run_gathering.finish()) == []


def test_a_directory_that_is_being_filled_is_not_gathered_from(
    run_gathering: RunGathering, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    chief = TaskId("worker", 0)
    found: list[Event] = []

    async def put_back(*_: Any) -> PutBack:
        write_prefix(paths.task_checkpoints(chief), "ckpt-7")
        found.extend(await run_gathering.bring_home())
        return PutBack(7, (), ())

    monkeypatch.setattr(Here, "put_back", put_back)
    asyncio.run(run_gathering.put_state_back([chief]))
    assert found == []
    assert len(asyncio.run(run_gathering.bring_home())) == 1, "once its task may have written"


def test_what_a_task_saves_after_its_attempt_was_given_up_is_not_gathered(
    run_gathering: RunGathering, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node may be reached again before the state is put back from which the next one starts."""
    monkeypatch.setattr("tfcluster.coordinator.gathering._LOOK_EVERY_S", 0.01)
    monkeypatch.setattr("tfcluster.checkpoints.gatherer.LEAST_GAP_S", 0.0)
    chief, found = TaskId("worker", 0), list[Event]()

    async def meanwhile() -> None:
        following = asyncio.create_task(run_gathering.follow(found.append))
        assert await run_gathering.bring_home() == []
        write_prefix(paths.task_checkpoints(chief), "ckpt-7")
        await asyncio.sleep(0.1)
        assert found == []
        run_gathering.heed(chief)
        async with asyncio.timeout(20):
            while not found:  # noqa: ASYNC110 (a thread looks)
                await asyncio.sleep(0.01)
        following.cancel()
        await asyncio.wait([following])

    asyncio.run(meanwhile())
