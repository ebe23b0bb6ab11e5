"""Secret values: the variables that are secret, and the removal of their values from output."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

from tfcluster.agent.message_fields import Struct, replace
from tfcluster.errors import TfclusterError, UsageError
from tfcluster.plans.plan import MASK, Plan
from tfcluster.spec import mask_webhook

WEBHOOK_VARIABLE: Final = "TFCLUSTER_ON_END"
"""The variable with the URL of a webhook, for a plan that is made from a run's files."""
MIN_LENGTH: Final = 6
"""The least length, in characters, of a value that is searched for in text; shorter ones would be
found everywhere."""
_SECRET_NAME: Final = re.compile(
    r"(?:(?:^|_)(?:API|ACCESS|SECRET|PRIVATE)?KEYS?|(?:^|_)AUTH|(?:^|_)PAT|TOKEN|SECRETS?|PASSWORDS?"
    r"|PASSWD|PASSPHRASE|CREDENTIALS?)(?:_|$)",
    re.IGNORECASE,
)
"""Matches names with such a word: WANDB_API_KEY, DBPASSWORD_2; not MAX_TOKENS, not TF_COMPAT."""
_PATHS: Final = frozenset({"GOOGLE_APPLICATION_CREDENTIALS", "SSH_AUTH_SOCK"})
"""Variables that hold a path, which is shown to explain why a file is not found."""


def is_secret(name: str, *, named: Collection[str], shown: Collection[str]) -> bool:
    """Return whether the variable is secret, by its name or because the spec says so.

    `named`: ``job.secrets``, which overrides `shown`: ``job.not_secret``.
    """
    if name in named:
        return True
    return name not in shown and name not in _PATHS and _SECRET_NAME.search(name) is not None


def redact_spec(
    spec: Mapping[str, Any], *, shown: Collection[str], named: Collection[str] = ()
) -> dict[str, Any]:
    """Return the JSON of a spec with null for secret values, and the path of a webhook masked.

    A plan made from it takes them from the launcher's environment, as null means.
    """
    return {key: _redact_env(value, key, shown, named) for key, value in spec.items()}


def holds_secrets(
    spec: Mapping[str, Any], *, shown: Collection[str], named: Collection[str] = ()
) -> bool:
    """Return whether a secret value is written in the spec itself."""
    return redact_spec(spec, shown=shown, named=named) != dict(spec)


def _redact_env(value: Any, key: str, shown: Collection[str], named: Collection[str]) -> Any:
    if isinstance(value, list):
        return [_redact_env(item, "", shown, named) for item in value]
    if key == "on_end" and isinstance(value, str):
        return mask_webhook(value)
    if not isinstance(value, dict):
        return value
    if key == "env":
        return {
            name: None if is_secret(name, named=named, shown=shown) else text
            for name, text in value.items()
        }
    return {name: _redact_env(item, name, shown, named) for name, item in value.items()}


def find_webhook(on_end: str, environ: Mapping[str, str]) -> str:
    """Return `supervision.on_end`, with the path of a webhook that was masked in a run's files.

    Raises UsageError if `environ` has not its URL.
    """
    if not on_end.startswith("https://") or on_end != mask_webhook(on_end):
        return on_end
    if mask_webhook(url := environ.get(WEBHOOK_VARIABLE, "")) == on_end:
        return url
    message = f"supervision.on_end is {on_end}, whose path is secret and not in the run's files"
    raise UsageError(message, fix=f"name it with --on-end, or export {WEBHOOK_VARIABLE}=URL")


def find_variables(plan: Plan) -> dict[str, str]:
    """Return the variables with secrets, without which the stored spec gives no plan.

    Raises UsageError for several values of one variable.
    """
    commands = (*(task.command for task in plan.tasks), *plan.prepare.values())
    found = dict[str, str]()
    for var in (each for command in commands for each in command.env if each.secret):
        if found.setdefault(var.name, var.value) != var.value:
            raise UsageError(
                f"the secret {var.name} differs between tasks, which a submitted job cannot have",
                fix="use variables with different names",
            )
    return {**found, WEBHOOK_VARIABLE: url} if (url := _find_url(plan)) else found


def _find_url(plan: Plan) -> str:
    """Return the whole URL of the plan's webhook; empty without one."""
    on_end = plan.supervision.on_end or ""
    return "" if on_end == mask_webhook(on_end) else on_end


def find_values(plan: Plan, environ: Mapping[str, str] = MappingProxyType({})) -> tuple[str, ...]:
    """Return the secret values that must not be written or shown, the longest first.

    `environ` has those of a plan from a run's files, which has none.
    """
    commands = (*(task.command for task in plan.tasks), *plan.prepare.values())
    secret = [var for command in commands for var in command.env if var.secret]
    values = {var.value or environ.get(var.name, "") for var in secret}
    values |= {_find_url(plan), environ.get(WEBHOOK_VARIABLE, "")}
    searched = (value for value in values if len(value) >= MIN_LENGTH)
    return tuple(sorted(searched, key=lambda value: (-len(value), value)))


T = TypeVar("T")


def redact(value: T, secrets: Sequence[str]) -> T:
    """Return `value`, an event or a part of one, with `secrets` masked; itself if it has none."""
    return _redact(value, secrets) if secrets else value


def _redact(value: Any, secrets: Sequence[str]) -> Any:
    if type(value) is str:
        for secret in secrets:
            value = value.replace(secret, MASK)
        return value
    if isinstance(value, Struct):
        new = replace(value, **{name: _redact(item, secrets) for name, item in vars(value).items()})
        return value if new == value else new
    if isinstance(value, Mapping):
        return {_redact(k, secrets): _redact(item, secrets) for k, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_redact(item, secrets) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def redact_error(error: BaseException | None, secrets: Sequence[str]) -> None:
    """Mask `secrets` in a tfcluster error, which may quote a task's last output."""
    if secrets and isinstance(error, TfclusterError):
        error.message, error.fix = redact(error.message, secrets), redact(error.fix, secrets)
        error.args = redact(error.args, secrets)
