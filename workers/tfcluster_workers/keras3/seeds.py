"""Patches the SeedGenerator of Keras 3, for dropout and other random layers on several workers.

The state of a SeedGenerator is equal on all workers, so every worker would use the same dropout
mask (keras#20611 is about the same state). Here each replica adds its own number to the seed.

Releases before 3.5 keep the state in a uint32 variable, but TensorFlow's collectives, which send
the chief's initial value to every worker, do not support uint32 ("Value for attr 'T' of uint32 is
not in the list of allowed values", CollectiveBcastSend). Since 3.5 it is int64, as here. The random
numbers stay the same, because the TensorFlow backend converts either type to int32. This patch
applies under every strategy: a seed made outside a scope may be used inside one, and its increments
must have its type.
"""

from __future__ import annotations

from typing import Any

from tfcluster_workers.keras3.patches import Patches, uses_name

_SEED_DISTANCE = 1_000_003
"""The distance between two replicas' seeds: larger than between the seeds of a script's layers."""


def add_to(patches: Patches, keras: Any) -> None:
    """Have `SeedGenerator` differ by replica, and keep an int64 in every release."""
    _vary_by_replica(patches, keras.random.SeedGenerator)
    if not uses_name(keras.random.SeedGenerator.__init__, "random_seed_dtype"):
        from keras.src.random import seed_generator

        seed_generator.backend = _SignedSeeds(seed_generator.backend)


def _vary_by_replica(patches: Patches, owner: Any) -> None:
    @patches.replaces(owner, "next", takes=["self"], uses=["state"])
    def next_of_replica(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        from tfcluster_workers.keras3 import release

        seed = original(self, *args, **kwargs)
        replica = tf.distribute.get_replica_context()
        if replica is None or not release.spans_workers(replica.strategy):
            return seed
        number = tf.cast(replica.replica_id_in_sync_group, seed.dtype)
        return seed + tf.stack([number * _SEED_DISTANCE, tf.zeros_like(number)])


class _SignedSeeds:
    """The Keras backend as SeedGenerator uses it, with int64 instead of uint32."""

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
