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

Path = tuple[str | int, ...]
"""Where in a spec something stands: ``("cluster", "worker", 0)``."""

K = TypeVar("K")
T = TypeVar("T")
Listed = Annotated[tuple[T, ...], Strict(False)]
"""A JSON list; strict about its items, not about being a list in Python."""

TEN_YEARS_S = 10 * 365 * 86400.0
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s?(ms|s|m|h|d)", re.ASCII)


def drop_x_keys(value: Any) -> Any:
    """An object without the keys that are the user's own; anything else as it is."""
    if not isinstance(value, Mapping):
        return value
    return {key: kept for key, kept in value.items() if not str(key).startswith("x-")}


@dataclass(frozen=True, slots=True)
class _OwnKeysAllowed:
    """The schema's word for `drop_x_keys`."""

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(core), "patternProperties": {"^x-": {}}}


Keyed = Annotated[dict[K, T], BeforeValidator(drop_x_keys), _OwnKeysAllowed()]
"""An object whose keys the user chooses; those with ``x-`` are ignored here, too."""


class Section(BaseModel):
    """A JSON object of the spec: frozen, exact about types, deaf only to keys with ``x-``."""

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
    """One broken rule, at a path relative to where the rule was asked."""

    path: Path
    message: str
    fix: str = ""
    on_key: bool = False
    """Whether the key is what is wrong, rather than the value behind it."""

    def below(self, *start: str | int) -> Mistake:
        return Mistake((*start, *self.path), self.message, self.fix, self.on_key)


class RulesBroken(ValueError):
    """All findings of one validator, which pydantic would otherwise cut down to one."""

    def __init__(self, findings: Iterable[Mistake]) -> None:
        self.findings = tuple(findings)
        super().__init__("; ".join(f"{found.message} ({found.fix})" for found in self.findings))

    @classmethod
    def check(cls, findings: Iterable[Mistake]) -> None:
        """Raise when there is any finding."""
        if found := tuple(findings):
            raise cls(found)


def wrong(message: str, fix: str = "") -> PydanticCustomError:
    """An error of one value, with its cure, for `tfcluster.spec.problems`."""
    # The texts travel as context: a brace in them must not be read as a placeholder.
    return PydanticCustomError("tfcluster", "{message}", {"message": message, "cure": fix})


def documented(default: Any, description: str, example: Any, **limits: Any) -> Any:
    """A field with the three texts that the schema owes every property."""
    shown = limits.pop("shown_default", default)
    extra = {"default": shown} if shown is not default else None
    return Field(
        default, description=description, examples=[example], json_schema_extra=extra, **limits
    )


def required(description: str, example: Any) -> Any:
    """A field that must be there; its example stands in for the default in the schema."""
    extra = {"default": example}
    return Field(description=description, examples=[example], json_schema_extra=extra)


def parse_duration(value: Any) -> Any:
    """Seconds from ``90``, ``"90s"``, ``"5m"``, ``"12h"``, ``"2d"`` or ``"500ms"``."""
    fix = 'write seconds, or a text such as "90s", "5m", "12h"'
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise wrong("a duration is expected here", fix)
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise wrong(f"{shorten(value)} is not a duration", fix)
        seconds = float(match[1]) * _UNITS[match[2]]
    else:
        seconds = float(min(max(value, -1), TEN_YEARS_S + 1))
    if not 0 <= seconds <= TEN_YEARS_S:
        raise wrong("a duration lies between 0 and 10 years", fix)
    return seconds


def shorten(value: object, most: int = 60) -> str:
    """`value` as it would be quoted in a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _not_zero(value: Any) -> Any:
    if value == 0:
        raise wrong("a deadline of 0 seconds would end every run", "leave it out for none")
    return value


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
Deadline = Annotated[
    float, BeforeValidator(lambda value: _not_zero(parse_duration(value))), _AS_JSON
]
"""A duration that is more than nothing."""


OURS = frozenset(
    {
        "TF_CONFIG", "TFCLUSTER_RUN_ID", "TFCLUSTER_TASK", "TFCLUSTER_ATTEMPT",
        "TFCLUSTER_CHECKPOINT_DIR", "TFCLUSTER_TENSORBOARD_DIR", "TFCLUSTER_RESTORED_STEP",
        "TFCLUSTER_EVENTS_FD", "TFCLUSTER_SETTINGS", "TFCLUSTER_TUNER_DIR",
    }
)  # fmt: skip
"""Set by tfcluster for each task, above all that a spec could say."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)


def _is_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        fix = "write letters, digits and _ only, for example WANDB_API_KEY"
        raise wrong(f"{shorten(name)} is not a variable's name", fix)
    return name


def _is_free(name: str) -> str:
    if name in OURS:
        raise wrong(f"{name} is set by tfcluster for each task", "leave it out")
    return name


Name = Annotated[str, AfterValidator(_is_name), AfterValidator(_is_free)]
Env = dict[Name, str | None]
"""null = take the value of the launcher's own environment."""
