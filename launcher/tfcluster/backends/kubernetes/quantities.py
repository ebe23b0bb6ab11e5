"""Quantities of Kubernetes (``500m``, ``2Gi``) as numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0} | {
    unit: base**power
    for base, units in ((1000.0, "k M G T P E"), (1024.0, "Ki Mi Gi Ti Pi Ei"))
    for power, unit in enumerate(units.split(), 1)
}
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)")


def parse(text: object) -> float:
    """Return the value of a quantity in base units: cores, bytes, pieces.

    Grammar: apimachinery/pkg/api/resource/quantity.go. Raises ValueError.
    """
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is no quantity of Kubernetes, such as 500m or 2Gi")
    return float(match[1]) * _UNITS[match[2]]


def parse_all(quantities: Mapping[str, object] | None) -> dict[str, float]:
    """Return resource → value."""
    return {name: parse(text) for name, text in (quantities or {}).items()}


def total(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of each resource."""
    summed: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            summed[name] = summed.get(name, 0.0) + value
    return summed


def show(resource: str, value: float) -> str:
    """Return a value as people write it: ``1.5``, ``2Gi``; cores and pieces have no unit."""
    is_bytes = any(word in resource for word in ("memory", "storage", "hugepages"))
    for unit in ("Ti", "Gi", "Mi", "Ki") if is_bytes else ():
        if value >= _UNITS[unit]:
            return f"{value / _UNITS[unit]:.4g}{unit}"
    return f"{value:.4g}"
