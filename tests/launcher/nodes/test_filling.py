"""An evaluator's folder gets each new checkpoint, on this machine or another one."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pytest
from tests.launcher.checkpoints.files import flip_a_bit, write_prefix

from tfcluster.checkpoints.copying import SourceChangedError
from tfcluster.checkpoints.gatherer import Gatherer
from tfcluster.checkpoints.recognition import Checkpoint, CheckpointKind, Entry
from tfcluster.checkpoints.store import Gathered, Store
from tfcluster.nodes.task_folders import LISTED, Follower, LocalTarget, files_to_send
from tfcluster.wire.file_trees import FileToSend


@dataclass
class Evaluator:
    """An evaluator of this machine, and a chief whose checkpoints are gathered for it."""

    root: Path
    gatherer: Gatherer
    follower: Follower

    @property
    def folder(self) -> Path:
        return self.root / "evaluator"

    def save(self, name: str, *, saved: int) -> None:
        write_prefix(self.root / "chief", name, saved=saved)
        self.gatherer.gather_last()
        asyncio.run(self.follower.follow(self.gatherer.store.held))

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.index"))


@pytest.fixture
def evaluator(tmp_path: Path) -> Evaluator:
    gatherer = Gatherer(tmp_path / "chief", Store(tmp_path / "store", keep=3))
    follower = Follower(LocalTarget(tmp_path / "evaluator"), beside=tmp_path)
    return Evaluator(tmp_path, gatherer, follower)


def test_the_newest_checkpoints_of_the_store_and_of_a_slow_reader_stay(
    evaluator: Evaluator,
) -> None:
    (evaluator.folder / "eval").mkdir(parents=True)
    (evaluator.folder / "eval" / "events").write_text("its own")
    for step in (1, 2, 3):
        evaluator.save(f"old-{step}", saved=step)
    inodes: dict[str, int] = {}
    for step in range(1, 9):
        evaluator.save(f"model.ckpt-{step}", saved=10 + step)
        for path in evaluator.folder.glob("*.index"):
            assert inodes.setdefault(path.name, path.stat().st_ino) == path.stat().st_ino
    newest = [f"model.ckpt-{step}" for step in range(4, 9)]
    assert evaluator.names() == [*newest, "old-1", "old-2", "old-3"]
    text = (evaluator.folder / "checkpoint").read_text()
    assert text.startswith('model_checkpoint_path: "model.ckpt-8"\n')
    assert text.count("all_model_checkpoint_paths") == 8
    assert (evaluator.folder / "eval" / "events").read_text() == "its own"
    assert not [*evaluator.root.glob(".outgoing-*")]


def test_a_folder_that_was_replaced_meanwhile_names_only_what_it_holds(
    evaluator: Evaluator,
) -> None:
    evaluator.save("ckpt-1", saved=1)
    shutil.rmtree(evaluator.folder)
    evaluator.save("ckpt-2", saved=2)
    assert evaluator.names() == ["ckpt-2"]
    assert "ckpt-1" not in (evaluator.folder / "checkpoint").read_text()


def test_the_list_of_checkpoints_gets_steps_that_are_reported_late(evaluator: Evaluator) -> None:
    def listed() -> list[tuple[str, int | None]]:
        entries = json.loads((evaluator.folder / LISTED).read_text())
        return [(entry["path"], entry["step"]) for entry in entries]

    evaluator.save("ckpt-1", saved=1)
    assert listed() == [("ckpt-1", None)]
    (held,) = evaluator.gatherer.store.held
    evaluator.gatherer.store.correct(held, step=40, load="")
    asyncio.run(evaluator.follower.follow(evaluator.gatherer.store.held))
    assert listed() == [("ckpt-1", 40)]


def test_a_restarted_evaluator_gets_all_again(evaluator: Evaluator) -> None:
    evaluator.save("ckpt-1", saved=1)
    shutil.rmtree(evaluator.folder)
    evaluator.follower.forget()
    asyncio.run(evaluator.follower.follow(evaluator.gatherer.store.held))
    assert evaluator.names() == ["ckpt-1"]


def test_a_damaged_checkpoint_is_not_passed_on(evaluator: Evaluator) -> None:
    write_prefix(evaluator.root / "chief", "ckpt-1", saved=1)
    (gathered,) = evaluator.gatherer.gather_last()
    flip_a_bit(gathered.folder / "ckpt-1.index")
    with pytest.raises(SourceChangedError):
        asyncio.run(evaluator.follower.follow([gathered]))
    assert evaluator.names() == []


@dataclass
class Refusing:
    """A folder of another machine that refuses files as long as it has an `error`."""

    folder = PurePosixPath("/there")
    error: OSError | None = None
    added: list[list[str]] = field(default_factory=list)

    async def paths(self) -> set[str]:
        return set()

    async def replace(self, files: Sequence[FileToSend]) -> None:
        raise AssertionError

    async def add(self, files: Sequence[FileToSend], removed: Sequence[str]) -> None:
        if self.error is not None:
            raise self.error
        self.added.append([file.path for file in files])


def test_what_could_not_be_added_is_tried_again(tmp_path: Path) -> None:
    there = Refusing(OSError("No space left on device"))
    (tmp_path / "model.h5").mkdir()
    (tmp_path / "model.h5" / "model.h5").write_bytes(b"data")
    checkpoint = Checkpoint(CheckpointKind.WEIGHTS, "model.h5", (Entry("model.h5", 4, 1),), ())
    held = [Gathered(checkpoint, tmp_path / "model.h5", 1, ("d" * 64,), 1)]
    follower = Follower(there, beside=tmp_path)
    with pytest.raises(OSError, match="No space"):
        asyncio.run(follower.follow(held))
    there.error = None
    for _ in range(2):
        asyncio.run(follower.follow(held))
    assert there.added == [["model.h5", LISTED]]


def test_files_of_the_store_are_linked_and_not_copied_before_sending(tmp_path: Path) -> None:
    stored = tmp_path / "ckpt-1"
    stored.mkdir()
    (stored / "ckpt-1.index").write_bytes(b"index")
    (stored / "ckpt-1.data-00000-of-00001").write_bytes(b"data")
    entries = (Entry("in/ckpt-1.data-00000-of-00001", 4, 1), Entry("in/ckpt-1.index", 5, 2))
    checkpoint = Checkpoint(CheckpointKind.TF_CHECKPOINT, "in/ckpt-1", entries, ())
    digests = ("d" * 128, "e" * 64)
    gathered = Gathered(checkpoint, stored, 1, digests, 2)
    (tmp_path / "outgoing").mkdir()
    sent = {file.path: file for file in files_to_send(tmp_path / "outgoing", [gathered])}
    assert sorted(sent) == ["in/checkpoint", *sorted(entry.path for entry in entries)]
    data = sent["in/ckpt-1.data-00000-of-00001"]
    assert data.source.samefile(stored / "ckpt-1.data-00000-of-00001")
    assert (data.sha512, data.mtime_ns) == ("d" * 128, 1)
    assert b"ckpt-1" in sent["in/checkpoint"].source.read_bytes()
