"""How each kind of checkpoint is loaded, in the words of the closing summary."""

from __future__ import annotations

from tfcluster.checkpoints.completeness import Kind
from tfcluster.checkpoints.store import Gathered

_HINTS = {
    Kind.TF_CHECKPOINT: "tf.train.Checkpoint(model=model).restore({path}).expect_partial()"
    "  # after save_weights: model.load_weights({path})",
    Kind.ESTIMATOR: "tf.estimator.Estimator(model_fn, model_dir={folder})"
    "  # or tf.train.load_checkpoint({path})",
    Kind.SAVED_MODEL: "tf.saved_model.load({path})",
    Kind.KERAS: "keras.models.load_model({path})",
    Kind.WEIGHTS: "model.load_weights({path})",
    Kind.BACKUP: "keras.callbacks.BackupAndRestore({path})  # before fit()",
}


def load_hint(gathered: Gathered) -> str:
    """One line of Python that loads it, with its absolute path."""
    path, folder = repr(str(gathered.path.absolute())), repr(str(gathered.folder.absolute()))
    hint = _HINTS[gathered.kind]
    if gathered.kind is Kind.WEIGHTS and not gathered.path.name.endswith(".weights.h5"):
        hint = "keras.models.load_model({path})  # weights only: model.load_weights({path})"
    return hint.format(path=path, folder=folder)
