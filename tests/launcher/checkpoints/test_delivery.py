"""Results are delivered to the user's folder, with a hint how to load them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfcluster.checkpoints.completeness import Kind
from tfcluster.checkpoints.gatherer import Gatherer
from tfcluster.checkpoints.store import Gathered, Store, deliver, load_hint

from .files import write_hdf5, write_keras, write_prefix, write_saved_model


def gather(tmp_path: Path) -> dict[Kind, Gathered]:
    Gatherer(tmp_path / "chief", store := Store(tmp_path / "store")).gather_last()
    return {held.kind: held for held in store.held}


def test_the_newest_checkpoint_and_the_outputs_are_copied(tmp_path: Path) -> None:
    write_prefix(tmp_path / "chief" / "sub", "ckpt-3")
    (tmp_path / "outputs" / "plots").mkdir(parents=True)
    (tmp_path / "outputs" / "plots" / "loss.png").write_text("image")
    to = tmp_path / "to"
    to.mkdir()
    (to / "mine.txt").write_text("mine")

    written = deliver(gather(tmp_path)[Kind.TF_CHECKPOINT], tmp_path / "outputs", to)

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


def test_a_saved_model_is_delivered_with_its_folder(tmp_path: Path) -> None:
    write_saved_model(tmp_path / "chief" / "exported")
    to = tmp_path / "to"

    deliver(gather(tmp_path)[Kind.SAVED_MODEL], None, to)

    assert (to / "exported" / "variables" / "variables.index").exists()
    assert not (to / "checkpoint").exists()


def test_nothing_to_deliver_is_not_an_error(tmp_path: Path) -> None:
    assert deliver(None, tmp_path / "not there", tmp_path / "to") == ()


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        (Kind.TF_CHECKPOINT, "tf.train.Checkpoint(model=model).restore('{path}').expect_partial()"),
        (Kind.SAVED_MODEL, "tf.saved_model.load('{path}')"),
        (Kind.KERAS, "keras.models.load_model('{path}')"),
        (Kind.WEIGHTS, "model.load_weights('{path}')"),
        (Kind.ESTIMATOR, "model_dir='{folder}'"),
        (Kind.BACKUP, "BackupAndRestore('{path}')"),
    ],
)
def test_the_hint_names_the_call_and_the_absolute_path(
    tmp_path: Path, kind: Kind, hint: str
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

    assert hint.format(path=gathered.path, folder=gathered.folder) in load_hint(gathered)


def test_a_whole_model_in_hdf5_is_loaded_as_a_model(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "chief" / "model.h5")

    assert load_hint(gather(tmp_path)[Kind.WEIGHTS]).startswith("keras.models.load_model(")
