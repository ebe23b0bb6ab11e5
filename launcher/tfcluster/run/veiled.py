"""Covers secret values in what is written down or said of a run, whoever it came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from tfcluster.errors import TfclusterError
from tfcluster.plan.secrecy import COVER
from tfcluster.run.ending import Outcome

T = TypeVar("T")


def veiled(value: T, secrets: Sequence[str]) -> T:
    """`value`, an event or anything in one, without the `secrets`; itself if it has none."""
    return _veiled(value, secrets) if secrets else value


def _veiled(value: Any, secrets: Sequence[str]) -> Any:
    if type(value) is str:
        for secret in secrets:
            value = value.replace(secret, COVER)
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        old = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        new = {name: _veiled(one, secrets) for name, one in old.items()}
        return value if new == old else dataclasses.replace(value, **new)
    if isinstance(value, Mapping):
        return {_veiled(k, secrets): _veiled(one, secrets) for k, one in value.items()}
    if isinstance(value, list | tuple):
        covered = [_veiled(one, secrets) for one in value]
        return covered if isinstance(value, list) else tuple(covered)
    return value


def veil_outcome(outcome: Outcome, secrets: Sequence[str]) -> Outcome:
    """The error at the end quotes what tasks said last."""
    error = outcome.error
    if secrets and isinstance(error, TfclusterError):
        error.message, error.cure = veiled(error.message, secrets), veiled(error.cure, secrets)
        error.args = veiled(error.args, secrets)
    return outcome
