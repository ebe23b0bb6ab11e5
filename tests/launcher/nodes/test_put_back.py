"""Every task's directory holds the same state before an attempt, and nothing else."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.launcher.checkpoints.files import flip_a_bit, write_keras, write_prefix

from tfcluster.agent.catalogue import Saved
from tfcluster.checkpoints.copying import SourceChangedError, scan
from tfcluster.checkpoints.gatherer import Gatherer
from tfcluster.checkpoints.recognition import find
from tfcluster.checkpoints.store import Gathered, Store, newest_of
from tfcluster.nodes import task_folders
from tfcluster.nodes.task_folders import LocalTarget


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with a chief's checkpoints up to step 20 and its backup of step 70."""
    chief = tmp_path / "source"
    write_prefix(chief, "ckpt-1", saved=1)
    write_prefix(chief, "ckpt-2", saved=2, content=b"second")
    write_prefix(chief / "backup" / "chief", "ckpt-7", saved=3)
    write_keras(chief / "best.keras")
    gatherer = Gatherer(chief, Store(tmp_path / "store"))
    gatherer.saved(Saved(path="ckpt-2", step=20))
    gatherer.saved(Saved(path="backup", step=70))
    gatherer.gather_last()
    return gatherer.store


def put_back(state: Sequence[Gathered], folders: Sequence[Path]) -> None:
    beside = folders[0].parent
    beside.mkdir(parents=True, exist_ok=True)
    asyncio.run(task_folders.put_back(state, map(LocalTarget, folders), beside=beside))
    assert not [*beside.glob(".outgoing-*")]


def names(folder: Path) -> set[str]:
    return {entry.path for entry in scan(folder) if not entry.path.endswith("/")}


STATE = {
    "checkpoint",
    "ckpt-2.index",
    "ckpt-2.data-00000-of-00001",
    "backup/chief/checkpoint",
    "backup/chief/ckpt-7.index",
    "backup/chief/ckpt-7.data-00000-of-00001",
    "best.keras",
}


def test_every_directory_gets_the_newest_state(store: Store, tmp_path: Path) -> None:
    tasks = [tmp_path / "tasks" / name for name in ("worker-0", "worker-1")]

    put_back(store.state(), tasks)

    assert newest_of(store.state()).step == 20
    assert not [*tmp_path.rglob("*.replaced")]
    assert [names(task) for task in tasks] == [STATE, STATE]
    assert (tasks[1] / "checkpoint").read_text().startswith('model_checkpoint_path: "ckpt-2"\n')
    assert Gatherer(tasks[0], store).gather_last() == [], "it is not gathered again"


def test_the_previous_contents_of_a_directory_are_kept_next_to_it(
    store: Store, tmp_path: Path
) -> None:
    task = tmp_path / "worker-0"
    write_prefix(task, "ckpt-99")
    (task / "log.csv").write_text("epoch,loss")

    put_back(store.state(), [task])

    assert names(task) == STATE
    assert names(tmp_path / "worker-0.replaced") == {
        "ckpt-99.index",
        "ckpt-99.data-00000-of-00001",
        "log.csv",
    }


def test_without_a_state_every_directory_is_empty(tmp_path: Path) -> None:
    tasks = [tmp_path / "worker-0", tmp_path / "worker-1"]
    write_prefix(tasks[1], "ckpt-5")

    put_back((), tasks)

    assert newest_of(()).step is None
    assert [*tmp_path.glob("*.replaced")] == [tmp_path / "worker-1.replaced"]
    assert [list(task.iterdir()) for task in tasks] == [[], []]


def test_a_damaged_store_leaves_the_folder_as_it_was(store: Store, tmp_path: Path) -> None:
    task = tmp_path / "tasks" / "worker-0"
    write_prefix(task, "old-1")
    (damaged,) = (g for g in store.state() if g.path.name == "best.keras")
    damaged.path.write_bytes(b"shorter")

    with pytest.raises(SourceChangedError, match=r"best\.keras"):
        put_back(store.state(), [task])

    assert names(tmp_path / "tasks") == {
        "worker-0/old-1.index",
        "worker-0/old-1.data-00000-of-00001",
    }


def test_a_flipped_bit_is_detected_although_size_and_time_are_the_same(
    store: Store, tmp_path: Path
) -> None:
    data = store.root / "ckpt-2" / "ckpt-2.data-00000-of-00001"
    flip_a_bit(data)

    with pytest.raises(SourceChangedError, match=rf"{data.name}: it is not what was gathered"):
        put_back(store.state(), [tmp_path / "worker-0"])

    (damaged,) = store.set_aside_damaged()
    assert str(damaged) == (
        "the gathered checkpoint ckpt-2 is damaged:"
        " ckpt-2.data-00000-of-00001: it is not what was gathered (SHA-512)"
    )
    put_back(store.state(), [tmp_path / "worker-0"])
    assert "ckpt-1" in {gathered.folder.name for gathered in store.state()}
    assert data.exists(), "it is kept for the user"
    assert "ckpt-2" not in {held.folder.name for held in Store(store.root).held}


def test_a_store_whose_times_were_lost_is_restored_with_the_old_times(
    store: Store, tmp_path: Path
) -> None:
    """As `cp -r`, `scp -r` and `touch` leave it."""
    copy = tmp_path / "copied"
    shutil.copytree(store.root, copy, copy_function=shutil.copy)
    task = tmp_path / "worker-0"

    put_back(Store(copy).state(), [task])

    assert names(task) == STATE
    assert int((task / "ckpt-2.index").stat().st_mtime) == 2


def test_the_step_of_a_backup_is_used_only_without_other_checkpoints(tmp_path: Path) -> None:
    chief = tmp_path / "chief"
    write_prefix(chief / "chief", "ckpt-4")
    (backup,) = find(scan(chief), None)
    store = Store(tmp_path / "alone")
    store.add(backup, chief, step=4)

    assert newest_of(store.state()).step == 4
