"""The store stays consistent on disk if files change, the disk is full or its process dies."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tfcluster.checkpoints.copying import SourceChangedError, scan
from tfcluster.checkpoints.recognition import Checkpoint, find
from tfcluster.checkpoints.store import (
    Gathered,
    IncompleteError,
    Store,
    newest_of_each,
    read_store,
)

from .files import delete_prefix, latest, write_hdf5, write_keras, write_prefix, write_saved_model


def complete(chief: Path) -> tuple[Checkpoint, ...]:
    return find(scan(chief), None)


def add(store: Store, chief: Path) -> list[Gathered]:
    added = (store.add(found, chief, step=found.step) for found in complete(chief))
    return [gathered for gathered in added if gathered]


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.*")}


def test_a_gathered_checkpoint_has_the_source_s_bytes_and_is_found_by_tensorflow(
    chief: Path, root: Path
) -> None:
    write_prefix(chief / "sub", "ckpt-12", shards=2, content=b"x" * 9000)

    (gathered,) = add(Store(root), chief)

    assert gathered.path == root / "sub-ckpt-12" / "ckpt-12"
    assert (gathered.step, gathered.save) == (None, 12)
    assert gathered.bytes == sum(path.stat().st_size for path in (chief / "sub").iterdir())
    for source in (chief / "sub").iterdir():
        assert (gathered.folder / source.name).read_bytes() == source.read_bytes()
    assert latest(root) == "sub-ckpt-12/ckpt-12"
    assert latest(gathered.folder) == "ckpt-12"


def test_the_store_can_be_moved(chief: Path, root: Path, tmp_path: Path) -> None:
    write_prefix(chief, "ckpt-1", saved=1)
    write_prefix(chief, "ckpt-2", saved=2)
    add(Store(root), chief)
    moved = tmp_path / "elsewhere" / "moved"

    shutil.move(root, moved)

    assert [held.path for held in Store(moved).held] == [
        moved / "ckpt-1" / "ckpt-1",
        moved / "ckpt-2" / "ckpt-2",
    ]
    assert str(tmp_path) not in (moved / "checkpoint").read_text()
    assert (moved / f"{latest(moved)}.index").exists()


@pytest.mark.parametrize("keep", [1, 3])
def test_the_newest_n_of_each_series_are_kept(chief: Path, root: Path, keep: int) -> None:
    store = Store(root, keep=keep)
    for step in range(1, 6):
        write_prefix(chief, f"ckpt-{step}", saved=step)
        write_hdf5(chief / f"w.{step}.weights.h5")
        add(store, chief)

    names = [held.folder.name for held in store.held]

    assert len(names) == 2 * keep
    assert {f"ckpt-{step}" for step in range(6 - keep, 6)} <= set(names)
    assert latest(root) == "ckpt-5/ckpt-5"
    assert sorted(path.name for path in root.iterdir()) == sorted([*names, "checkpoint"])


def test_a_note_of_the_first_versions_is_explained(chief: Path, root: Path) -> None:
    write_prefix(chief, "ckpt-1")
    (gathered,) = add(Store(root), chief)
    note = gathered.folder / ".tfcluster.json"
    note.write_text(note.read_text().replace("sha512", "sha256"))
    assert "it has no SHA-512, as of a version before 0.1" in str(read_store(root)[1][0])


def test_several_versions_of_a_rewritten_file_are_kept(chief: Path, root: Path) -> None:
    store = Store(root, keep=2)
    for version in range(1, 5):
        write_keras(chief / "model.keras", f"version {version}" * version)
        os.utime(chief / "model.keras", (version, version))
        add(store, chief)

    assert [held.folder.name for held in store.held] == ["model.keras.3", "model.keras.4"]
    assert store.newest is not None
    assert store.newest.path == root / "model.keras.4" / "model.keras"
    assert store.newest.path.read_bytes() == (chief / "model.keras").read_bytes()


def test_the_same_content_is_not_gathered_twice(chief: Path, root: Path) -> None:
    store = Store(root)
    write_prefix(chief, "ckpt-1", saved=1)
    add(store, chief)
    write_prefix(chief, "ckpt-1", saved=50)

    assert add(store, chief) == []
    assert len(store.held) == 1
    assert store.held[0].checkpoint == complete(chief)[0]


def test_content_that_is_saved_again_is_the_newest_again(chief: Path, root: Path) -> None:
    store = Store(root)
    for time, content in enumerate((b"first", b"second", b"first"), 1):
        write_prefix(chief, "best", content=content, saved=time)
        add(store, chief)

    for opened in (store, Store(root)):
        assert [held.folder.name for held in opened.held] == ["best.2", "best"]
    assert latest(root) == "best/best"


def test_a_saved_model_keeps_its_folders(chief: Path, root: Path) -> None:
    write_saved_model(chief / "export" / "1")

    (gathered,) = add(Store(root), chief)

    assert gathered.path == root / "export-1" / "1"
    assert (gathered.path / "variables" / "variables.index").exists()
    assert latest(root) is None


def test_a_backup_is_kept_once_and_is_not_a_result(chief: Path, root: Path) -> None:
    store = Store(root, keep=3)
    for step in (1, 2):
        write_prefix(chief / "backup" / "chief", f"ckpt-{step}", saved=step)
        add(store, chief)
        delete_prefix(chief / "backup" / "chief", f"ckpt-{step}")

    assert [held.checkpoint.number for held in store.held] == [2]
    assert store.newest is None
    assert latest(root) is None


@pytest.mark.parametrize("cut", ["ckpt-1.index", "model.keras", "a.weights.h5"])
def test_a_truncated_file_is_refused(chief: Path, root: Path, cut: str) -> None:
    write_prefix(chief, "ckpt-1")
    write_keras(chief / "model.keras")
    write_hdf5(chief / "a.weights.h5")
    (chief / cut).write_bytes((chief / cut).read_bytes()[:-7])
    store = Store(root)
    (broken,) = (c for c in complete(chief) if cut in {entry.path for entry in c.files})

    with pytest.raises(IncompleteError, match=cut):
        store.add(broken, chief, step=1)

    assert store.held == ()
    assert tree(root) == {}


def _delete(path: Path) -> None:
    path.unlink()


def _rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, (999, 999))


def _replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


def _cut(path: Path) -> None:
    os.truncate(path, 3)


@pytest.mark.parametrize("change", [_delete, _rewrite, _cut, _replace])
@pytest.mark.parametrize("changed", ["ckpt-1.data-00000-of-00002", "ckpt-1.index"])
@pytest.mark.parametrize("moment", range(2))
def test_the_copy_of_a_source_that_changes_during_the_copy_is_dropped(
    chief: Path,
    root: Path,
    change: object,
    changed: str,
    moment: int,
) -> None:
    assert callable(change)
    write_prefix(chief, "ckpt-1", shards=2)
    (checkpoint,) = complete(chief)
    store = Store(root)
    asked = 0

    def stopped() -> bool:
        nonlocal asked
        if asked == moment:
            change(chief / changed)
        asked += 1
        return False

    with pytest.raises(SourceChangedError):
        store.add(checkpoint, chief, step=1, stopped=stopped)

    assert asked > moment
    assert (store.held, tree(root)) == ((), {})


class Crash(BaseException):
    """An exception that stands for kill -9: no handler runs afterwards."""


@pytest.mark.parametrize(
    "crash_before",
    [
        "copying.copy_verified",
        "copying.LocalSource.check",
        "store._write_note",
        "store.sync_folder",
        "store._name_prefixes",
    ],
)
def test_after_a_crash_the_next_process_finds_only_complete_checkpoints(
    chief: Path, root: Path, crash_before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prefix(chief, "ckpt-1", saved=1)
    add(Store(root), chief)
    write_prefix(chief, "ckpt-2", saved=2)

    def crash(*_args: object, **_kwargs: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_args, **_kwargs: None)
        patch.setattr(f"tfcluster.checkpoints.{crash_before}", crash)
        with pytest.raises(Crash):
            add(Store(root), chief)
    store = Store(root)

    assert {held.folder.name for held in store.held} == {"ckpt-1"}
    assert not list(root.glob(".partial-*"))
    assert latest(root) == "ckpt-1/ckpt-1"
    assert [gathered.save for gathered in add(store, chief)] == [2]


def test_a_crash_between_the_rename_and_the_checkpoint_file_is_repaired(
    chief: Path, root: Path
) -> None:
    write_prefix(chief, "ckpt-1", saved=1)
    write_prefix(chief, "ckpt-2", saved=2)
    add(Store(root), chief)
    (root / "checkpoint").write_text('model_checkpoint_path: "ckpt-1/ckpt-1"\n')

    Store(root)

    assert latest(root) == "ckpt-2/ckpt-2"


def test_a_checkpoint_that_was_deleted_from_the_store_is_no_longer_listed(
    chief: Path, root: Path
) -> None:
    write_prefix(chief, "ckpt-1", saved=1)
    write_prefix(chief, "ckpt-2", saved=2)
    add(Store(root), chief)
    (root / "ckpt-2" / "ckpt-2.index").unlink()

    assert [held.save for held in read_store(root)[0]] == [1]
    Store(root)
    assert latest(root) == "ckpt-1/ckpt-1"


def test_the_state_to_restart_from_is_the_newest_of_each_series(chief: Path, root: Path) -> None:
    for step in (1, 2, 3):
        write_prefix(chief, f"ckpt-{step}", saved=step)
        write_prefix(chief / "weights", f"w-{step}", saved=step)
    store = Store(root)
    add(store, chief)

    assert {g.checkpoint.path for g in store.state()} == {"ckpt-3", "weights/w-3"}
    early = newest_of_each(store.held, place=2)
    assert {g.checkpoint.path for g in early} == {"ckpt-2", "weights/w-2"}
    with pytest.raises(KeyError):
        newest_of_each(store.held, place=7)


def test_a_checkpoint_called_checkpoint_does_not_hide_the_checkpoint_file(
    chief: Path, root: Path
) -> None:
    write_prefix(chief, "checkpoint")

    (gathered,) = add(Store(root), chief)

    assert latest(root) == f"{gathered.folder.name}/checkpoint"
