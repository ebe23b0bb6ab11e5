"""Dropout and its like draw for each worker anew, and can be made on several in old releases too.

The state of a SeedGenerator is the same on all workers, and so would be every mask, however many
examples it is for (keras#20611 is about the same state); each replica adds its own number.

Before 3.5 they keep it in a variable of uint32, and TensorFlow's collectives, by which every worker
gets the chief's first value, know no uint32 ("Value for attr 'T' of uint32 is not in the list of
allowed values", CollectiveBcastSend). Since 3.5 it is int64, as here: drawn are the same numbers,
because the TensorFlow backend makes an int32 of either. This one holds under every strategy: a seed
made outside a scope may be drawn from inside, and its steps must have its type.
"""

from __future__ import annotations

import functools
from typing import Any

_APART = 1_000_003
"""Between the seeds of two replicas: farther than those a script gives its layers."""


def patch() -> None:
    """Have `SeedGenerator` differ by replica, and keep an int64 in releases where it does not."""
    from keras.src.random import seed_generator

    _tell_replicas_apart(seed_generator.SeedGenerator)

    if not hasattr(seed_generator.backend, "random_seed_dtype"):
        seed_generator.backend = _SignedSeeds(seed_generator.backend)


def _tell_replicas_apart(owner: Any) -> None:
    original = owner.next

    @functools.wraps(original)
    def next_of_replica(self: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        from tfcluster_workers.keras3 import release

        seed = original(self, *args, **kwargs)
        replica = tf.distribute.get_replica_context()
        if replica is None or not release.spans_workers(replica.strategy):
            return seed
        number = tf.cast(replica.replica_id_in_sync_group, seed.dtype)
        return seed + tf.stack([number * _APART, tf.zeros_like(number)])

    owner.next = next_of_replica


class _SignedSeeds:
    """The backend as SeedGenerator sees it."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def Variable(self, *args: Any, dtype: str, **kwargs: Any) -> Any:
        return self._backend.Variable(*args, dtype=_signed(dtype), **kwargs)

    def convert_to_tensor(self, value: Any, dtype: str) -> Any:
        return self._backend.convert_to_tensor(value, dtype=_signed(dtype))


def _signed(dtype: str) -> str:
    return "int64" if dtype == "uint32" else dtype
