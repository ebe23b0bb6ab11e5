"""Finds the global batch size of what was handed to `fit`, where it can be known."""

from __future__ import annotations

from typing import Any

KERAS_DEFAULT = 32


def of(data: Any, *, asked: int | None) -> int | None:
    """Examples a step over all replicas: a number, or None where only the data knows."""
    if asked is not None:
        return int(asked)
    if data is None:
        return None
    if hasattr(data, "element_spec"):
        return _static(data) or _batched(data)
    if hasattr(data, "batch_size") and isinstance(data.batch_size, int):
        return data.batch_size  # a keras Sequence or PyDataset
    first = next(iter(data.values()), None) if isinstance(data, dict) else data
    first = first[0] if isinstance(first, (list, tuple)) and first else first
    return KERAS_DEFAULT if hasattr(first, "shape") else None


def _static(dataset: Any) -> int | None:
    """From the shapes, as with `drop_remainder=True`."""
    import tensorflow as tf

    spec = tf.nest.flatten(dataset.element_spec)[0]
    replicas = 1
    if hasattr(spec, "_value_specs"):  # PerReplicaSpec of a distributed dataset
        specs = spec._value_specs
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        spec = specs[0]
    shape = getattr(spec, "shape", None)
    if shape is None or shape.rank in (None, 0) or shape[0] is None:
        return None
    return int(shape[0]) * replicas


def _batched(dataset: Any) -> int | None:
    """From the `batch` call, through prefetch, repeat and the like."""
    for _ in range(16):
        size = getattr(dataset, "_batch_size", None)
        if size is not None:
            return int(size)
        dataset = getattr(dataset, "_input_dataset", None)
        if dataset is None:
            return None
    return None
