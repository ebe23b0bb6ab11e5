"""Secret values: the variables that are secret, and the removal of their values from output."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from tfcluster.errors import TfclusterError
from tfcluster.plan.plan import Command, Plan

COVER: Final = "********"
SHORTEST: Final = 6
"""Characters. A shorter value is not looked for in texts: it would be found everywhere."""
_TELLING: Final = re.compile(
    r"(?:(?:^|_)(?:API|ACCESS|SECRET|PRIVATE)?KEYS?|(?:^|_)AUTH|(?:^|_)PAT|TOKEN|SECRETS?|PASSWORDS?"
    r"|PASSWD|PASSPHRASE|CREDENTIALS?)(?:_|$)",
    re.IGNORECASE,
)
"""A word of the name is or ends so: WANDB_API_KEY, DBPASSWORD_2; not MAX_TOKENS, not TF_COMPAT."""
_PATHS: Final = frozenset({"GOOGLE_APPLICATION_CREDENTIALS", "SSH_AUTH_SOCK"})
"""Say where something lies, and are needed to see why it is not found."""


def is_secret(name: str, *, named: Collection[str], shown: Collection[str]) -> bool:
    """`named`: ``job.secrets``; `shown`: ``job.not_secret``, which the first one outranks."""
    if name in named:
        return True
    return name not in shown and name not in _PATHS and _TELLING.search(name) is not None


def covered(spec: Mapping[str, Any], *, shown: Collection[str]) -> dict[str, Any]:
    """The JSON of a spec with null in the place of secret values.

    Planned again it takes them from the launcher's environment, as ``null`` says.
    """
    return {key: _covered(value, key, shown) for key, value in spec.items()}


def holds_secrets(spec: Mapping[str, Any], *, shown: Collection[str]) -> bool:
    """Whether a secret value is written in the spec itself."""
    return covered(spec, shown=shown) != dict(spec)


def _covered(value: Any, key: str, shown: Collection[str]) -> Any:
    if isinstance(value, list):
        return [_covered(one, "", shown) for one in value]
    if not isinstance(value, dict):
        return value
    if key == "env":
        return {name: _hidden(name, text, shown) for name, text in value.items()}
    return {name: _covered(one, name, shown) for name, one in value.items()}


def _hidden(name: str, text: Any, shown: Collection[str]) -> Any:
    return None if is_secret(name, named=(), shown=shown) else text


def values(plan: Plan) -> tuple[str, ...]:
    """What must not stand in anything that is written or shown, the longest first."""
    commands = (*(task.command for task in plan.tasks), *plan.prepare.values())
    found = {value for command in commands for value in _values(command)}
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def _values(command: Command) -> Iterator[str]:
    return (var.value for var in command.env if var.secret and len(var.value) >= SHORTEST)


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


def cover_in_error(error: BaseException | None, secrets: Sequence[str]) -> None:
    """Cover `secrets` in an error of ours, which quotes what tasks wrote last."""
    if secrets and isinstance(error, TfclusterError):
        error.message, error.fix = veiled(error.message, secrets), veiled(error.fix, secrets)
        error.args = veiled(error.args, secrets)
