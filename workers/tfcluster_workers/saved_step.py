"""Finds the training step of what is being saved: the number in a checkpoint's name seldom is one.

`tf.train.Checkpoint` and `CheckpointManager` number their saves 1, 2, 3; Keras's callbacks write
epochs into their names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tfcluster_workers import reporting

_NAMES = ("global_step", "step", "train_step", "iterations")
"""How a loop calls the variable that it saves with its state (TensorFlow's guide "Training
checkpoints": `tf.train.Checkpoint(step=tf.Variable(1), optimizer=…)`)."""
_COUNT = re.compile(r"-(\d+)$")


def of_saver(saver: Any, path: str) -> int | None:
    """Of the objects behind a `tf.train.Checkpoint`, else the last step that was reported.

    An object's own step comes first: a coordinator's reports lag behind what its ps have counted.
    """
    view = saver._graph_view
    return _or_reported(_step_among(view.children(view.root)))


def of_graph_saver(saver: Any, path: str) -> int | None:
    """`tf.compat.v1.train.Saver` writes the global step into the name, where it is given one."""
    found = _COUNT.search(path)
    return int(found.group(1)) if found else None


def of_model(model: Any, path: str) -> int | None:
    """Of a Keras model: the steps of its optimizer, else the last step that was reported."""
    return _or_reported(iterations_of(_optimizer_of(model)))


def _step_among(parts: Mapping[str, Any]) -> int | None:
    """Of a variable that is called so; else the most steps of any optimizer."""
    named = _first(*(value_of(parts.get(name)) for name in _NAMES))
    if named is not None:
        return named
    owners = [part for each in parts.values() for part in (each, _optimizer_of(each))]
    counts = [count for owner in owners if (count := iterations_of(owner)) is not None]
    return max(counts, default=None)


def _optimizer_of(owner: Any) -> Any:
    """None where there is none, or where a script's own model fails to say."""
    try:
        return getattr(owner, "optimizer", None)
    except Exception:
        return None


def iterations_of(optimizer: Any) -> int | None:
    """Steps that an optimizer of any Keras has taken; None where it cannot tell."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    # `iterations` of the legacy optimizers would create the variable; the attribute does not.
    return value_of(getattr(optimizer, "_iterations", None))


def value_of(variable: Any) -> int | None:
    """What a variable of one number holds; None for anything else.

    One that is reduced between the workers when it is read is none: all of them would have to.
    """
    when = getattr(getattr(variable, "synchronization", None), "name", "")
    if variable is None or when == "ON_READ":
        return None
    try:
        return int(variable.numpy())
    except Exception:  # a graph, a table, a ps that is gone
        return None


def _or_reported(step: int | None) -> int | None:
    return reporting.meter.last_step if step is None else step


def _first(*steps: int | None) -> int | None:
    return next((step for step in steps if step is not None), None)
