"""The results that `features.py` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def numbers(found: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number in `found` with its path."""
    if isinstance(found, dict | list):
        for name, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from numbers(value, f"{path}/{name}")
    elif isinstance(found, int | float):
        yield path, found
