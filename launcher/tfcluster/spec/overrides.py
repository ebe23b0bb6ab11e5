"""The option ``--set a.b=c``: fields of the spec that the command line overrides."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tfcluster.errors import SpecError
from tfcluster.spec import FieldPath, jsonc, published_schema
from tfcluster.spec.fields import Mistake
from tfcluster.spec.problems import show_path, unknown_key


@dataclass(frozen=True, slots=True)
class Override:
    """One field that an option sets; messages quote `option`."""

    path: FieldPath
    value: Any
    option: str


def parse(text: str) -> Override:
    """Parse ``a.b=c``; the value is JSON, or a string if the field takes strings only.

    A list item is named by its index. For a field that takes a string or something else
    (``gpus``, durations), a value that is not JSON is a string. ``null`` is null for a string
    field that may be null. Raises SpecError.
    """
    name, equals, value = text.partition("=")
    option = f"--set {text if len(text) <= 60 else f'{text[:59]}…'}"
    if not equals or not name:
        fix = "write for example --set supervision.grace_s=60"
        raise SpecError.at(option, "not FIELD=VALUE", fix)
    path = _resolve(tuple(name.split(".")), ())
    if path is None:
        unknown = _first_unknown(tuple(name.split(".")))
        raise SpecError.at(option, unknown.message, unknown.fix)
    return Override(path, _read_value(value, path, option), option)


def of_variable(name: str, value: str | None) -> Override:
    """Return the override of ``-e NAME=VALUE``; None takes the launcher's value.

    Raises SpecError.
    """
    option = f"-e {name}"
    known = None if value is None else _check_utf8(value, option)
    return Override(("job", "env", name), known, option)


def apply(value: Any, overrides: Iterable[Override]) -> Any:
    """Return a copy of the spec's `value` with the overrides applied; raises SpecError."""
    changed = copy.deepcopy(value)
    for override in overrides:
        changed = _put(changed, override.path, override)
    return changed


def _put(current: Any, rest: FieldPath, override: Override, done: FieldPath = ()) -> Any:
    if not rest:
        return override.value
    key = rest[0]
    if isinstance(key, int):
        return _put_item(current, key, rest, override, done)
    if isinstance(current, str) and "address" in published_schema.keys_at(done):
        current = {"address": current}
    if current is None:
        current = {}
    if not isinstance(current, dict):
        name = show_path(done) if done else "the spec"
        raise SpecError.at(override.option, f"{name} is not an object in the file", "fix the file")
    return {**current, key: _put(current.get(key), rest[1:], override, (*done, key))}


def _put_item(
    current: Any, index: int, rest: FieldPath, override: Override, done: FieldPath
) -> Any:
    items = [] if current is None else current
    if not isinstance(items, list):
        fix = f"set the whole list: --set {show_path(done)}='[…]'"
        raise SpecError.at(override.option, f"{show_path(done)} is not a list in the file", fix)
    if index > len(items):
        message = f"{show_path(done)} has {len(items)} items: there is no item {index}"
        raise SpecError.at(override.option, message, f"use 0 to {len(items)}")
    old = items[index] if index < len(items) else None
    return [
        *items[:index],
        _put(old, rest[1:], override, (*done, index)),
        *items[index + 1 :],
    ]


def _resolve(parts: tuple[str, ...], done: FieldPath) -> FieldPath | None:
    """Return the path of dotted `parts`, or None; keys of hosts and variables may contain dots."""
    if not parts:
        return done
    for step, used in _steps(parts, done):
        if path := _resolve(parts[used:], (*done, step)):
            return path
    return None


def _steps(parts: tuple[str, ...], done: FieldPath) -> Iterator[tuple[str | int, int]]:
    """Yield each possible next step below `done` and the number of `parts` that it uses."""
    types = published_schema.types_at(done)
    if published_schema.has_key(done, parts[0]):
        yield parts[0], 1
    if "array" in types and parts[0].isascii() and parts[0].isdecimal() and len(parts[0]) < 6:
        yield int(parts[0]), 1
    if published_schema.is_map(done):
        yield from ((".".join(parts[:used]), used) for used in range(1, len(parts) + 1))


def _first_unknown(parts: tuple[str, ...]) -> Mistake:
    done: FieldPath = ()
    for part in parts:
        step = next((step for step, _ in _steps((part,), done)), None)
        if step is None:
            return unknown_key((*done, part))
        done = (*done, step)
    return unknown_key(done)


def _read_value(text: str, path: FieldPath, option: str) -> Any:
    types = published_schema.types_at(path)
    if types <= {"string", "null"}:
        return None if text == "null" and "null" in types else _check_utf8(text, option)
    try:
        return jsonc.read(text).value
    except jsonc.TextError as error:
        if "string" in types:
            return _check_utf8(text, option)
        fix = _json_fix(path)
        raise SpecError.at(option, f"{show_path(path)}: {error.message}", fix) from None


def _json_fix(path: FieldPath) -> str:
    if known := sorted(published_schema.keys_at(path)):
        return f"write a JSON object, or set one of its fields: {', '.join(known)}"
    example = shlex.quote(json.dumps(published_schema.example_at(path)))
    return f"write JSON, for example --set {show_path(path)}={example}"


def _check_utf8(text: str, option: str) -> str:
    # Bytes of the command line that are not UTF-8 arrive as unpaired surrogates.
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise SpecError.at(option, "the value is not UTF-8", "write it in UTF-8")
    return text
