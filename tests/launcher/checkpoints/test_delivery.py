"""Results are delivered to the user's folder, with a hint how to load them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfcluster.agent.catalogue import Saved
from tfcluster.checkpoints.gatherer import Gatherer
from tfcluster.checkpoints.recognition import CheckpointKind
from tfcluster.checkpoints.store import Gathered, Store, deliver, load_hint, read_store

from .files import write_hdf5, write_keras, write_prefix, write_saved_model


def gather(tmp_path: Path) -> dict[CheckpointKind, Gathered]:
    Gatherer(tmp_path / "chief", store := Store(tmp_path / "store")).gather_last()
    return {held.kind: held for held in store.held}


def test_the_newest_checkpoint_and_the_outputs_are_copied(tmp_path: Path) -> None:
    write_prefix(tmp_path / "chief" / "sub", "ckpt-3")
    (tmp_path / "outputs" / "plots").mkdir(parents=True)
    (tmp_path / "outputs" / "plots" / "loss.png").write_text("image")
    to = tmp_path / "to"
    to.mkdir()
    (to / "mine.txt").write_text("mine")

    written = deliver(gather(tmp_path)[CheckpointKind.TF_CHECKPOINT], tmp_path / "outputs", to)

    names = {path.relative_to(to).as_posix() for path in to.rglob("*") if path.is_file()}
    assert {path.relative_to(to).as_posix() for path in written} == names - {"mine.txt"}
    assert names == {
        "mine.txt",
        "checkpoint",
        "ckpt-3.index",
        "ckpt-3.data-00000-of-00001",
        "plots/loss.png",
    }
    assert 'model_checkpoint_path: "ckpt-3"' in (to / "checkpoint").read_text()

    write_saved_model(tmp_path / "chief" / "exported")
    other = tmp_path / "other"
    assert deliver(None, tmp_path / "not there", other) == ()
    deliver(gather(tmp_path)[CheckpointKind.SAVED_MODEL], None, other)
    assert (other / "exported" / "variables" / "variables.index").exists()
    assert not (other / "checkpoint").exists()


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        (CheckpointKind.TF_CHECKPOINT, "tf.train.load_checkpoint('{path}')"),
        (CheckpointKind.SAVED_MODEL, "tf.saved_model.load('{path}')"),
        (CheckpointKind.KERAS, "keras.models.load_model('{path}')"),
        (CheckpointKind.WEIGHTS, "model.load_weights('{path}')"),
        (CheckpointKind.ESTIMATOR, "tf.train.load_checkpoint('{path}')"),
        (
            CheckpointKind.BACKUP,
            "tf.train.Checkpoint(model=model).restore('{path}/chief/ckpt-1').expect_partial()",
        ),
    ],
)
def test_the_hint_names_the_call_and_the_absolute_path(
    tmp_path: Path, kind: CheckpointKind, hint: str
) -> None:
    chief = tmp_path / "chief"
    write_prefix(chief / "c", "ckpt-1")
    write_saved_model(chief / "m")
    write_keras(chief / "model.keras")
    write_hdf5(chief / "a.weights.h5")
    write_prefix(chief / "e", "model.ckpt-1")
    (chief / "e" / "model.ckpt-1.meta").write_text("graph")
    write_prefix(chief / "backup" / "chief", "ckpt-1")
    gathered = gather(tmp_path)[kind]

    assert load_hint(gathered) == hint.format(path=gathered.path)


def test_the_hint_is_what_the_task_reported_of_its_save(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "chief" / "model.h5")
    gatherer = Gatherer(tmp_path / "chief", store := Store(tmp_path / "store"))
    load = "tf_keras.models.load_model({path})"
    gatherer.saved(Saved(path=str(tmp_path / "chief" / "model.h5"), load=load))
    gatherer.saved(Saved(path="model.h5", step=20))  # the script reports the same save
    (gathered,) = gatherer.gather_last()
    assert gathered.step == 20
    assert load_hint(gathered) == f"tf_keras.models.load_model('{gathered.path}')"
    assert read_store(store.root)[0] == (gathered,)
    gatherer.saved(Saved(path="model.h5", load="model.load_weights({path})"))
    (corrected,) = gatherer.gather_last()
    assert load_hint(corrected) == f"model.load_weights('{gathered.path}')"


def test_a_backup_of_keras_3_is_loaded_as_weights(tmp_path: Path) -> None:
    backup = tmp_path / "chief" / "backup"
    write_hdf5(backup / "latest.weights.h5")
    (backup / "training_metadata.json").write_text("{}")
    gathered = gather(tmp_path)[CheckpointKind.BACKUP]
    assert load_hint(gathered) == f"model.load_weights('{gathered.folder}/latest.weights.h5')"


def test_the_arrays_of_orbax_are_in_one_of_its_folders(tmp_path: Path) -> None:
    step = tmp_path / "chief" / "orbax" / "9"
    for name in ("model_config/_METADATA", "pytree/_METADATA", "pytree/manifest.ocdbt"):
        (step / name).parent.mkdir(parents=True, exist_ok=True)
        (step / name).write_text("x")
    (step / "_CHECKPOINT_METADATA").write_text("{}")
    gathered = gather(tmp_path)[CheckpointKind.ORBAX]
    assert load_hint(gathered).endswith(f".restore('{gathered.path}/pytree')")
