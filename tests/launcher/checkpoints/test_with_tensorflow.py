"""Checkpoints of real TensorFlow and Keras are found complete and can be restored."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfcluster.checkpoints.gatherer import Gatherer
from tfcluster.checkpoints.recognition import CheckpointKind
from tfcluster.checkpoints.store import Store
from tfcluster.nodes.task_folders import LocalTarget, put_back

SCRIPT = Path(__file__).with_name("save_with_tensorflow.py")
ROOT = Path(__file__).parents[3]


@pytest.fixture(params=["newest", "2.15"])
def python(request: pytest.FixtureRequest) -> str:
    """Return a Python with the newest TensorFlow, or with TensorFlow 2.15."""
    if request.param == "newest":
        return sys.executable
    found = ROOT / ".venv-tf215" / "bin" / "python"
    if not found.exists():
        pytest.skip("no .venv-tf215: `make setup` found no Python 3.9 to 3.11")
    return str(found)


def run(python: str, *args: object, stdin: str = "") -> None:
    # TensorFlow 2.15 uses Keras 2 anyway.
    keras_2 = {"TF_USE_LEGACY_KERAS": "1"} if python == sys.executable else {}
    done = subprocess.run(
        [python, str(SCRIPT), *map(str, args)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=280,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "-1"} | keras_2,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.tensorflow
@pytest.mark.slow
def test_all_saved_checkpoints_are_gathered_and_restored_from_a_moved_store(
    python: str, tmp_path: Path
) -> None:
    chief = tmp_path / "chief"
    chief.mkdir()
    run(python, "save", chief)
    gatherer = Gatherer(chief, Store(tmp_path / "store"))

    gathered = gatherer.gather_last()

    assert gatherer.take_notes() == []
    assert {(g.checkpoint.path, g.kind, g.save) for g in gathered} == {
        ("tf/ckpt-2", CheckpointKind.TF_CHECKPOINT, 2),
        ("tf/ckpt-3", CheckpointKind.TF_CHECKPOINT, 3),
        ("weights/cp-0007.ckpt", CheckpointKind.TF_CHECKPOINT, None),
        ("weights.03.weights.h5", CheckpointKind.WEIGHTS, None),
        ("model.keras", CheckpointKind.KERAS, None),
        ("whole.h5", CheckpointKind.WEIGHTS, None),
        ("exported", CheckpointKind.SAVED_MODEL, None),
        ("plain/1", CheckpointKind.SAVED_MODEL, None),
        ("backup", CheckpointKind.BACKUP, None),
    }
    assert {g.step for g in gathered} == {None}, "no step was reported"
    moved = (tmp_path / "store").rename(tmp_path / "moved")
    rows = [{"kind": g.kind, "path": str(g.path)} for g in Store(moved).held]
    wanted = "\n".join(json.dumps(row) for row in rows if row["kind"] != CheckpointKind.BACKUP)
    run(python, "load", chief, moved, stdin=wanted)


@pytest.mark.tensorflow
@pytest.mark.slow
def test_a_task_finds_the_state_that_was_put_back(python: str, tmp_path: Path) -> None:
    chief, task = tmp_path / "chief", tmp_path / "worker-1"
    chief.mkdir()
    run(python, "save", chief)
    gatherer = Gatherer(chief, Store(tmp_path / "store"))
    gatherer.gather_last()

    asyncio.run(put_back(gatherer.store.state(), [LocalTarget(task)], beside=tmp_path))

    row = json.dumps({"kind": CheckpointKind.TF_CHECKPOINT, "path": str(task / "tf" / "ckpt-3")})
    run(python, "load", chief, task / "tf", stdin=row)
    assert (task / "backup" / "chief" / "checkpoint").exists()
