"""The building blocks of all spec sections: strict keys, documented fields, durations, mistakes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    Strict,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from tfcluster.spec import FieldPath, shorten

K = TypeVar("K")
T = TypeVar("T")
Listed = Annotated[tuple[T, ...], Strict(False)]
"""A JSON list; strict about its items, not about being a list in Python."""

TEN_YEARS_S = 10 * 365 * 86400.0
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s?(ms|s|m|h|d)", re.ASCII)


def drop_x_keys(value: Any) -> Any:
    """Return an object without the user's ``x-`` keys; return any other value unchanged."""
    if not isinstance(value, Mapping):
        return value
    return {key: kept for key, kept in value.items() if not str(key).startswith("x-")}


@dataclass(frozen=True, slots=True)
class _AllowsXKeys:
    """The schema's form of `drop_x_keys`."""

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(core), "patternProperties": {"^x-": {}}}


Keyed = Annotated[dict[K, T], BeforeValidator(drop_x_keys), _AllowsXKeys()]
"""An object whose keys the user chooses; keys that begin with ``x-`` are ignored."""


class Section(BaseModel):
    """A JSON object of the spec: frozen and strict about types; it ignores ``x-`` keys only."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        defer_build=True,  # `model.py` builds them all as one
        json_schema_extra={"patternProperties": {"^x-": {}}},
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_x_keys(cls, value: Any) -> Any:
        return drop_x_keys(value)


@dataclass(frozen=True, slots=True)
class Mistake:
    """One broken rule, at a path relative to the value that was checked."""

    path: FieldPath
    message: str
    fix: str = ""
    on_key: bool = False
    """True if the key is wrong rather than its value."""

    def below(self, *start: str | int) -> Mistake:
        """Return the mistake with its path moved below `start`."""
        return Mistake((*start, *self.path), self.message, self.fix, self.on_key)


class RulesBroken(ValueError):
    """All mistakes that one validator found; pydantic itself would keep only the first."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("; ".join(f"{each.message} ({each.fix})" for each in self.mistakes))

    @classmethod
    def check(cls, mistakes: Iterable[Mistake]) -> None:
        """Raise RulesBroken if there is any mistake."""
        if broken := tuple(mistakes):
            raise cls(broken)


def field_error(message: str, fix: str) -> PydanticCustomError:
    """Return the error of one value, with its fix, for `tfcluster.spec.problems`."""
    # Message and fix are passed as context: a brace in them must not be read as a placeholder.
    return PydanticCustomError("tfcluster", "{message}", {"message": message, "fix": fix})


def matching(pattern: re.Pattern[str], expected: str, fix: str) -> AfterValidator:
    """Return the check that a string matches `pattern` as a whole; any other is not `expected`."""

    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise field_error(f"{shorten(value)} is not {expected}", fix)
        return value

    return AfterValidator(check)


def documented(default: Any, description: str, example: Any, **limits: Any) -> Any:
    """Return a field with the description, default and example that the schema must have."""
    shown = limits.pop("shown_default", [] if default == () else default)
    extra = {"default": shown} if shown is not default else None
    return Field(
        default, description=description, examples=[example], json_schema_extra=extra, **limits
    )


def required(description: str, example: Any) -> Any:
    """Return a field without a default; the schema shows its example as the default."""
    extra = {"default": example}
    return Field(description=description, examples=[example], json_schema_extra=extra)


def parse_duration(value: Any) -> Any:
    """Return the seconds in ``90``, ``"90s"``, ``"5m"``, ``"12h"``, ``"2d"`` or ``"500ms"``.

    Raises PydanticCustomError for anything else, and outside 0 seconds to 10 years.
    """
    fix = 'write seconds, or a string such as "90s", "5m", "12h"'
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise field_error("expected a duration", fix)
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise field_error(f"{shorten(value)} is not a duration", fix)
        seconds = float(match[1]) * _UNITS[match[2]]
    else:
        seconds = float(min(max(value, -1), TEN_YEARS_S + 1))
    if not 0 <= seconds <= TEN_YEARS_S:
        raise field_error("a duration must be between 0 and 10 years", fix)
    return seconds


def _parse_deadline(value: Any) -> Any:
    if (seconds := parse_duration(value)) == 0:
        fix = "leave it out for no deadline"
        raise field_error("a deadline of 0 seconds would end every run", fix)
    return seconds


_AS_JSON = WithJsonSchema(
    {
        "anyOf": [
            {"type": "number", "minimum": 0, "maximum": TEN_YEARS_S},
            {"type": "string", "pattern": r"^\s*\d{1,12}(\.\d{1,6})?\s?(ms|s|m|h|d)\s*$"},
        ]
    }
)
Seconds = Annotated[float, BeforeValidator(parse_duration), _AS_JSON]
"""A duration in seconds; the user may write a unit."""
Deadline = Annotated[float, BeforeValidator(_parse_deadline), _AS_JSON]
"""A duration greater than 0."""


RESERVED_VARIABLES = frozenset(
    {
        "TF_CONFIG", "TFCLUSTER_RUN_ID", "TFCLUSTER_TASK", "TFCLUSTER_ATTEMPT",
        "TFCLUSTER_CHECKPOINT_DIR", "TFCLUSTER_TENSORBOARD_DIR", "TFCLUSTER_RESTORED_STEP",
        "TFCLUSTER_EVENTS_FD", "TFCLUSTER_EVENTS_SOCKET", "TFCLUSTER_SETTINGS",
        "TFCLUSTER_TF_CONFIG", "TFCLUSTER_TUNER_DIR", "TFCLUSTER_GPUS",
    }
)  # fmt: skip
"""Variables that tfcluster sets for each task; a spec cannot set them."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)


def _check_variable_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        fix = "use letters, digits, _, . and -, and no digit first, for example WANDB_API_KEY"
        raise field_error(f"{shorten(name)} is not a variable name", fix)
    if name in RESERVED_VARIABLES:
        raise field_error(f"{name} is set by tfcluster for each task", "leave it out")
    return name


Name = Annotated[str, AfterValidator(_check_variable_name)]
Env = dict[Name, str | None]
"""Environment variables; null takes the value from the launcher's environment."""
