"""Dropout and its like can be made on several workers, in releases before 3.5 too.

They keep the state of their random numbers in a variable of uint32, and TensorFlow's collectives,
by which every worker gets the chief's first value, know no uint32 ("Value for attr 'T' of uint32 is
not in the list of allowed values", CollectiveBcastSend). Since 3.5 it is int64, as here: drawn are
the same numbers, because the TensorFlow backend makes an int32 of either.
"""

from __future__ import annotations

from typing import Any


def mend() -> None:
    """Have `SeedGenerator` keep an int64, in releases where it does not."""
    from keras.src.random import seed_generator

    if not hasattr(seed_generator.backend, "random_seed_dtype"):
        seed_generator.backend = _SignedSeeds(seed_generator.backend)


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
