"""Checkpoints are gathered and restored despite failing disks and tasks that save meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import pytest
from tests.launcher.checkpoints.files import flip_a_bit, write_prefix
from tests.launcher.conftest import plan_of

from tfcluster.agent.catalogue import Saved
from tfcluster.checkpoints.copying import CancelledError, SourceChangedError, Stopped
from tfcluster.checkpoints.recognition import Checkpoint, CheckpointKind, Entry, Newest
from tfcluster.checkpoints.store import Gathered, newest_of
from tfcluster.coordinator.gathering import NOTHING, RunGathering
from tfcluster.errors import RunFolderError
from tfcluster.nodes import task_folders
from tfcluster.nodes.task_folders import Follower, LocalTarget
from tfcluster.plans.plan import TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event
from tfcluster.rundir.paths import RunPaths

EMPTY = Checkpoint(CheckpointKind.TF_CHECKPOINT, "ckpt-1", (), ())
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def run_gathering(paths: RunPaths, tmp_path: Path) -> RunGathering:
    plan = plan_of()
    run_gathering = RunGathering(replace(plan, workdir=str(tmp_path)), paths)
    run_gathering.use(LocalFolders(paths))  # type: ignore[arg-type]
    run_gathering.follow_chief(plan.chief)
    return run_gathering


class RemoteFolder:
    """The chief's folder on another machine, which lists its entries or raises an error."""

    folder = PurePosixPath("/there/worker-0")

    def __init__(self, *entries: Entry, error: OSError | None = None) -> None:
        self._entries, self._error = entries, error

    def scan(self, **_: Any) -> tuple[Entry, ...]:
        if self._error is not None:
            raise self._error
        return self._entries


class LocalFolders:
    """The task folders of a run on this machine only."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths

    def checkpoints(self, task: TaskId) -> Path:
        return self._paths.task_checkpoints(task)

    def follower(self, task: TaskId) -> Follower:
        return Follower(LocalTarget(self.checkpoints(task)), beside=self._paths.root)

    def use_full_speed(self) -> None:
        """Do nothing."""

    def limit_speed(self) -> None:
        """Do nothing."""

    def fetch_tensorboard(self, *, stopped: Stopped) -> dict[str, Any]:
        return {}

    def is_remote(self, node: str) -> bool:
        return False

    def fetch_command(self, node: str, folder: PurePath) -> str:
        return f"copy {folder} from {node}"

    def workdir(self, task: TaskId) -> Path:
        return self._paths.root

    async def put_back(self, state: Sequence[Gathered], tasks: Iterable[TaskId]) -> int | None:
        targets = [LocalTarget(self.checkpoints(task)) for task in tasks]
        await task_folders.put_back(state, targets, beside=self._paths.root)
        return newest_of(state).step


def failing(monkeypatch: pytest.MonkeyPatch, errors: Sequence[Exception]) -> None:
    """Make restores raise these errors, one at a time, and then succeed."""
    remaining = list(errors)

    async def put_back(*_: Any) -> int | None:
        if remaining:
            raise remaining.pop(0)
        return 7

    monkeypatch.setattr(LocalFolders, "put_back", put_back)


def test_a_damaged_checkpoint_is_taken_from_the_chief_s_folder_again(
    run_gathering: RunGathering, paths: RunPaths
) -> None:
    write_prefix(paths.task_checkpoints(plan_of().chief), "ckpt-1")
    write_prefix(paths.task_checkpoints(plan_of().chief), "ckpt-2")

    async def restart() -> list[Event]:
        await run_gathering.gather_latest()
        flip_a_bit(paths.checkpoints / "ckpt-2" / "ckpt-2.index")
        await run_gathering.put_state_back([plan_of().chief])
        return run_gathering.take_events()

    restored, warned = asyncio.run(restart())

    assert isinstance(restored, ev.CheckpointGathered)
    assert restored.path == "checkpoints/ckpt-2.2/ckpt-2"
    assert isinstance(warned, ev.Warned)
    assert warned.message.startswith("the gathered checkpoint ckpt-2 is damaged: ckpt-2.index")


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ([SourceChangedError("ckpt-1"), FileNotFoundError("ckpt-2")], ""),
        ([FULL] * 3, "No space left"),
    ],
    ids=["rotated away", "a full disk"],
)
def test_a_restore_is_retried_and_a_failure_that_stays_is_an_environment_error(
    run_gathering: RunGathering,
    monkeypatch: pytest.MonkeyPatch,
    errors: list[Exception],
    reason: str,
) -> None:
    failing(monkeypatch, errors)
    expected = pytest.raises(RunFolderError, match=reason) if reason else contextlib.nullcontext()
    with expected:
        assert asyncio.run(run_gathering.put_state_back([])) == 7


def test_a_failed_gathering_is_reported_once_and_does_not_end_the_run(
    run_gathering: RunGathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather_last(*_: Any, **how: Any) -> list[Any]:
        raise FULL

    monkeypatch.setattr(run_gathering._gatherer, "gather_last", gather_last)
    events: list[Event] = []
    for _ in range(3):
        events += asyncio.run(run_gathering.gather_latest())
    assert [type(event) for event in events] == [ev.Warned]
    (closing,) = asyncio.run(run_gathering.finish())
    assert isinstance(closing, ev.Warned)
    assert closing.message == (
        "the last checkpoints of worker:0 were not gathered: [Errno 28] No space left on device"
    )
    assert run_gathering.is_incomplete, "even if the same was reported before: remote folders stay"


@pytest.mark.parametrize(
    ("remote", "keeps_files", "stays"),
    [
        (RemoteFolder(Entry("model.keras", 9, 1)), True, True),
        (RemoteFolder(Entry("notes.txt", 9, 1)), True, False),
        (RemoteFolder(error=OSError("the link is cut")), True, True),
        (RemoteFolder(Entry("model.keras", 9, 1)), False, False),
    ],
)
def test_remote_checkpoints_that_are_not_gathered_but_needed_are_kept_and_reported(
    paths: RunPaths, tmp_path: Path, remote: RemoteFolder, keeps_files: bool, stays: bool
) -> None:
    plan = replace(plan_of(), workdir=str(tmp_path))
    run_gathering = RunGathering(plan, paths, enabled=False, keeps_files=keeps_files)
    folders = LocalFolders(paths)
    folders.checkpoints = lambda task: remote  # type: ignore[assignment, method-assign, return-value]
    run_gathering.use(folders)  # type: ignore[arg-type]
    run_gathering.follow_chief(plan.chief)

    (*events,) = asyncio.run(run_gathering.finish())

    assert run_gathering.is_incomplete is stays
    words = "the checkpoints of worker:0 are on local: `copy /there/worker-0 from local`"
    assert [event.facts()["message"] for event in events] == [words] * stays


def test_a_newer_checkpoint_changes_the_mark_of_the_newest(
    run_gathering: RunGathering, paths: RunPaths
) -> None:
    assert run_gathering.mark_newest() == NOTHING
    chief = paths.task_checkpoints(run_gathering._plan.chief)
    write_prefix(chief, "ckpt-2")
    asyncio.run(run_gathering.gather_latest())
    without_step = run_gathering.mark_newest()
    assert without_step not in (NOTHING, "")
    run_gathering.saved(Saved(path=str(chief / "ckpt-2"), step=10, at_ns=time.time_ns()))
    asyncio.run(run_gathering.gather_latest())
    assert run_gathering.mark_newest() == "step 10"


def test_shared_storage_has_a_mark_only_if_its_checkpoints_are_known(
    paths: RunPaths, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    run_gathering = gathering_from_shared_dir(paths, str(shared))
    assert run_gathering.mark_newest() == "", "it is not mounted here"
    shared.mkdir()
    assert run_gathering.mark_newest() == NOTHING
    (shared / "state.pickle").touch()
    assert run_gathering.mark_newest() == ""


def gathering_from_shared_dir(paths: RunPaths, storage: str) -> RunGathering:
    plan = plan_of()
    return RunGathering(replace(plan, checkpoints=replace(plan.checkpoints, dir=storage)), paths)


def test_shared_storage_that_cannot_be_read_does_not_end_the_run(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the file server used to be an internal error (exit 70) during the restart."""

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("tfcluster.coordinator.gathering.scan", fails)
    run_gathering = gathering_from_shared_dir(paths, str(tmp_path))
    run_gathering.saved(Saved(path=str(tmp_path / "ckpt-3"), step=3))
    (events,) = asyncio.run(run_gathering.gather_latest())
    assert events.facts()["message"] == (
        "checkpoints.dir cannot be read: [Errno 5] Input/output error"
    )
    assert run_gathering.newest == Newest(3, "ckpt-3"), "as the chief reported"


def test_a_backup_in_shared_storage_gets_the_step_that_the_chief_reported(
    paths: RunPaths, tmp_path: Path
) -> None:
    backup = tmp_path / "shared" / "backup"
    backup.mkdir(parents=True)
    for name in ("latest.weights.h5", "training_metadata.json"):
        (backup / name).write_text("{}")
    run_gathering = gathering_from_shared_dir(paths, str(backup.parent))
    asyncio.run(run_gathering.gather_latest())
    assert run_gathering.newest == Newest(None, "backup")
    run_gathering.saved(Saved(path=str(backup), step=120))
    asyncio.run(run_gathering.gather_latest())
    assert run_gathering.newest == Newest(120, "backup")


def test_storage_that_is_not_mounted_gets_the_last_reported_step(paths: RunPaths) -> None:
    run_gathering = gathering_from_shared_dir(paths, "gs://bucket/exp7")
    asyncio.run(run_gathering.gather_latest())
    assert run_gathering.newest == Newest()
    run_gathering.saved(Saved(path="gs://bucket/exp7/ckpt-3", step=375))
    asyncio.run(run_gathering.gather_latest())
    assert run_gathering.newest == Newest(375, "ckpt-3")


def test_a_checkpoint_gathered_while_the_run_ends_is_reported(
    run_gathering: RunGathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Gathered(EMPTY, run_gathering._paths.checkpoints, 1, (), 0)
    started, release = threading.Event(), threading.Event()

    def gather() -> list[Gathered]:
        started.set()
        release.wait(20)
        return [found]

    monkeypatch.setattr(run_gathering._gatherer, "gather", gather)
    monkeypatch.setattr(run_gathering._gatherer, "gather_last", lambda *_, **how: [])

    async def end_during_gathering() -> list[Event]:
        following = asyncio.create_task(run_gathering.follow(lambda event: None))
        run_gathering.saved(Saved(path="ckpt-1", step=1))
        await asyncio.to_thread(started.wait, 20)
        following.cancel()
        release.set()
        await asyncio.wait([following])
        while not run_gathering._found:  # noqa: ASYNC110 (a thread fills it)
            await asyncio.sleep(0.01)
        return await run_gathering.finish()

    assert [type(event) for event in asyncio.run(end_during_gathering())] == [ev.CheckpointGathered]


@pytest.mark.parametrize("within_a_copy", [True, False])
def test_a_cancelled_gathering_is_incomplete(
    run_gathering: RunGathering, monkeypatch: pytest.MonkeyPatch, within_a_copy: bool
) -> None:
    def cancel_and_gather(*_: Any, **how: Any) -> list[Gathered]:
        run_gathering.cancel()
        if within_a_copy:  # the gatherer does not report what it skips
            return []
        raise CancelledError

    monkeypatch.setattr(run_gathering._gatherer, "gather_last", cancel_and_gather)
    (warning,) = asyncio.run(run_gathering.finish())
    assert isinstance(warning, ev.Warned)
    assert "gathering was stopped by Ctrl-C" in warning.message
    assert run_gathering.is_incomplete


def test_an_attempt_that_ended_before_its_start_gathers_nothing(
    paths: RunPaths, tmp_path: Path
) -> None:
    """An attempt ends before its start if its node is lost during the restore."""
    run_gathering = RunGathering(replace(plan_of(), workdir=str(tmp_path)), paths)
    run_gathering.use(LocalFolders(paths))  # type: ignore[arg-type]
    assert asyncio.run(run_gathering.gather_latest()) == []
    assert asyncio.run(run_gathering.finish()) == []


def test_a_folder_is_not_gathered_while_it_is_being_restored(
    run_gathering: RunGathering, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    chief = TaskId("worker", 0)
    found: list[Event] = []

    async def put_back(*_: Any) -> int | None:
        write_prefix(paths.task_checkpoints(chief), "ckpt-7")
        found.extend(await run_gathering.gather_latest())
        return 7

    monkeypatch.setattr(LocalFolders, "put_back", put_back)
    asyncio.run(run_gathering.put_state_back([chief]))
    assert found == []
    assert len(asyncio.run(run_gathering.gather_latest())) == 1, (
        "it is gathered once its task may have saved"
    )


def test_a_checkpoint_saved_after_its_attempt_was_given_up_is_not_gathered(
    run_gathering: RunGathering, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task's node may be reached again before the state of the next attempt is restored."""
    monkeypatch.setattr("tfcluster.coordinator.gathering._GATHER_EVERY_S", 0.01)
    monkeypatch.setattr("tfcluster.checkpoints.gatherer.LEAST_GAP_S", 0.0)
    chief, found = TaskId("worker", 0), list[Event]()

    async def save_after_the_attempt() -> None:
        following = asyncio.create_task(run_gathering.follow(found.append))
        assert await run_gathering.gather_latest() == []
        write_prefix(paths.task_checkpoints(chief), "ckpt-7")
        await asyncio.sleep(0.1)
        assert found == []
        run_gathering.follow_chief(chief)
        async with asyncio.timeout(20):
            while not found:  # noqa: ASYNC110 (a thread fills it)
                await asyncio.sleep(0.01)
        following.cancel()
        await asyncio.wait([following])

    asyncio.run(save_after_the_attempt())


class LostFolders(LocalFolders):
    """Folders on a lost node; a copy of the chief's may be had, once `may_copy` is set."""

    def __init__(self, paths: RunPaths) -> None:
        super().__init__(paths)
        self.is_asked, self.may_copy, self.copies = asyncio.Event(), asyncio.Event(), 0

    def checkpoints(self, task: TaskId) -> Any:
        return RemoteFolder(error=OSError("the node is lost"))

    def is_remote(self, node: str) -> bool:
        return True

    def is_lost(self, node: str) -> bool:
        return True

    async def salvage_checkpoints(self, task: TaskId, into: Path) -> None:
        self.copies += 1
        self.is_asked.set()
        await self.may_copy.wait()
        write_prefix(into, "ckpt-7")


async def lost_chief(paths: RunPaths, workdir: Path) -> tuple[RunGathering, LostFolders]:
    """Return a run whose chief has reported step 7 and is on a lost node."""
    plan, folders = replace(plan_of(), workdir=str(workdir)), LostFolders(paths)
    run_gathering = RunGathering(plan, paths)
    run_gathering.use(folders)  # type: ignore[arg-type]
    run_gathering.follow_chief(plan.chief)
    run_gathering.saved(Saved(path="/there/worker-0/ckpt-7", step=7))
    return run_gathering, folders


def test_what_a_lost_node_still_gives_is_copied_once_for_all_who_ask(
    paths: RunPaths, tmp_path: Path
) -> None:
    async def scenario() -> list[Event]:
        run_gathering, folders = await lost_chief(paths, tmp_path)
        latest = asyncio.create_task(run_gathering.gather_latest())
        await folders.is_asked.wait()
        end = asyncio.create_task(run_gathering.finish())
        await asyncio.sleep(0.05)
        folders.may_copy.set()
        events = [*await latest, *await end]
        assert folders.copies == 1
        assert run_gathering.missed == ""
        return events

    (gathered,) = asyncio.run(scenario())
    assert isinstance(gathered, ev.CheckpointGathered)
    assert gathered.step == 7


def test_a_copy_from_a_lost_node_is_shown_and_ends_with_ctrl_c(
    paths: RunPaths, tmp_path: Path
) -> None:
    async def scenario() -> list[Event]:
        run_gathering, folders = await lost_chief(paths, tmp_path)
        end = asyncio.create_task(run_gathering.finish())
        await folders.is_asked.wait()
        shown = run_gathering.gathering()
        assert shown is not None
        assert shown["what"] == "checkpoints"
        run_gathering.cancel()
        async with asyncio.timeout(120):
            events = await end
        assert "gathering was stopped" in run_gathering.missed
        return events

    assert any("gathering was stopped" in str(event) for event in asyncio.run(scenario()))


def test_a_run_whose_final_gathering_raises_is_incomplete(
    run_gathering: RunGathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **how: Any) -> list[Any]:
        raise ValueError("a bug")

    monkeypatch.setattr(run_gathering._gatherer, "gather_last", fail)
    with pytest.raises(ValueError, match="a bug"):
        asyncio.run(run_gathering.finish())
    assert run_gathering.is_incomplete
