"""A side-car evaluator: it evaluates each checkpoint that the chief saves, while the others train.

    from tfcluster_workers import context, evaluator

    if context.is_evaluator():
        evaluator.evaluate_checkpoints(model, test_dataset, metric="accuracy")   # never returns

For any Keras; tf_keras has `SidecarEvaluator`, Keras 3 has none. The model is compiled as that of
the workers, without a distribution strategy. tfcluster copies the chief's checkpoints into the
checkpoint directory of the task `evaluator`, marks the best one, and ends the task with the run.
"""

from __future__ import annotations

import functools
import json
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfcluster_workers import context, reporting
from tfcluster_workers.hooks import keras_hooks

if TYPE_CHECKING:
    from typing import NoReturn

LISTED = ".tfcluster-checkpoints.json"
"""The file in the checkpoint directory that lists the checkpoints in it, with their steps."""
_POLL_S = 0.5
_write = functools.partial(print, flush=True)
_LOADABLE = ("tf_checkpoint", "estimator", "weights", "keras")
"""The kinds of checkpoints that `restore` can load; the others are exports, or of JAX or torch."""
_MORE_IS_BETTER = ("acc", "auc", "precision", "recall", "f1", "iou", "similarity", "score")


def evaluate_checkpoints(
    model: Any,
    data: Any,
    *,
    metric: str = "loss",
    lower_is_better: bool | None = None,
    checkpoint: Any = None,
    **options: Any,
) -> NoReturn:
    """Evaluate the newest checkpoint whenever there is a newer one, until tfcluster ends the task.

    `metric` decides which checkpoint is the best; by default its name says whether less is better.
    `checkpoint` is the `tf.train.Checkpoint` to restore; by default one of ``model=model``, as
    Keras's own files need none. `options` are passed to `model.evaluate`.
    """
    if lower_is_better is None:
        lower_is_better = not any(part in metric for part in _MORE_IS_BETTER)
    folder, evaluated = context.current().checkpoint_dir, None
    while True:
        newest = find_newest(folder)
        if newest is None or newest == evaluated:
            time.sleep(_POLL_S)
            continue
        path, step = newest
        try:
            restore(model, folder / path, checkpoint)
        except Exception:
            if find_newest(folder) == newest:
                raise
            continue  # it was replaced by a newer one meanwhile
        results = model.evaluate(data, return_dict=True, **{"verbose": 0, **options})
        evaluated = newest
        if step is None:
            step = keras_hooks.steps_done(model) or None
        report(results, metric, lower_is_better, step)


def find_newest(folder: Path) -> tuple[str, int | None] | None:
    """Return path and step of the newest checkpoint in `folder`, or None without one.

    The path is relative to `folder`. The list is tfcluster's; without it the newest is the one
    that TensorFlow's ``checkpoint`` file names.
    """
    try:
        listed = json.loads((folder / LISTED).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not (folder / "checkpoint").exists():
            return None
        import tensorflow as tf

        latest = tf.train.latest_checkpoint(str(folder))
        return None if latest is None else (os.path.relpath(latest, folder), None)
    last = next((each for each in reversed(listed) if each["kind"] in _LOADABLE), None)
    return None if last is None else (last["path"], last["step"])


def restore(model: Any, path: Path, checkpoint: Any = None) -> None:
    """Load the weights of a checkpoint; raises AssertionError where it has not all of them."""
    if path.suffix in (".h5", ".keras"):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
            model.load_weights(str(path))
        return
    import tensorflow as tf

    objects = tf.train.Checkpoint(model=model) if checkpoint is None else checkpoint
    objects.restore(str(path)).assert_existing_objects_matched()


def report(
    results: Mapping[str, Any], metric: str, lower_is_better: bool, step: int | None
) -> None:
    """Print the results of a checkpoint and report them; raises KeyError for an unknown metric."""
    values = {name: float(value) for name, value in results.items()}
    if metric not in values:
        raise KeyError(f"evaluate returns no {metric!r}, only {', '.join(values)}")
    shown = " ".join(f"{name} {value:.6f}" for name, value in values.items())
    _write(f"evaluated step {'?' if step is None else step} {shown}")
    if step is not None:
        reporting.reached(step, metrics=values)
    reporting.evaluated(
        step,
        metric=metric,
        value=values[metric],
        lower_is_better=lower_is_better,
        follows=True,
    )
