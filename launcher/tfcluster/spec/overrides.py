"""``--set a.b=c``: what the command line says instead of the file, in the file's own terms."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tfcluster.errors import Problem
from tfcluster.spec import jsonc, published_schema
from tfcluster.spec.fields import Path, shorten
from tfcluster.spec.problems import shown, unknown_key


@dataclass(frozen=True, slots=True)
class Override:
    """One field that an option sets; `option` names that option in messages."""

    path: Path
    value: Any
    option: str


class Refused(ValueError):
    """An option that cannot be carried out."""

    def __init__(self, option: str, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.problem = Problem(option, message, fix)


def parse(text: str) -> Override:
    """Read ``a.b=c``: VALUE is JSON unless the field is text; list items go by number.

    Where a field takes text or something else (``gpus``, durations), what is no JSON is text.
    A text field that may be null takes ``null`` as that. Raises Refused.
    """
    name, equals, value = text.partition("=")
    option = f"--set {shorten(text)[1:-1]}" if len(text) > 60 else f"--set {text}"
    if not equals or not name:
        raise Refused(option, "no FIELD=VALUE", "write for example --set supervision.grace_s=60")
    path = _resolve(tuple(name.split(".")), ())
    if path is None:
        found = _first_unknown(tuple(name.split(".")))
        raise Refused(option, found.message, found.fix)
    return Override(path, _read_value(value, path, option), option)


def apply(value: Any, overrides: Iterable[Override]) -> Any:
    """A copy of the spec's `value` with the overrides in it. Raises Refused."""
    changed = copy.deepcopy(value)
    for override in overrides:
        changed = _put(changed, override.path, override)
    return changed


def _put(current: Any, rest: Path, override: Override, done: Path = ()) -> Any:
    if not rest:
        return override.value
    key = rest[0]
    here = (*done, key)
    if isinstance(key, int):
        return _put_item(current, key, rest, override, done)
    if isinstance(current, str) and "address" in published_schema.keys_at(done):
        current = {"address": current}
    if current is None:
        current = {}
    if not isinstance(current, dict):
        where = f"{shown(done)} is" if done else "the spec is"
        raise Refused(override.option, f"{where} no object in the file", "correct it there")
    return {**current, key: _put(current.get(key), rest[1:], override, here)}


def _put_item(current: Any, index: int, rest: Path, override: Override, done: Path) -> Any:
    items = [] if current is None else current
    if not isinstance(items, list):
        fix = f"set the whole: --set {shown(done)}='[…]'"
        raise Refused(override.option, f"{shown(done)} is no list in the file", fix)
    if index > len(items):
        message = f"{shown(done)} has {len(items)} items, and none with the number {index}"
        raise Refused(override.option, message, "items count from 0")
    old = items[index] if index < len(items) else None
    return [
        *items[:index],
        _put(old, rest[1:], override, (*done, index)),
        *items[index + 1 :],
    ]


def _resolve(parts: tuple[str, ...], done: Path) -> Path | None:
    """The path that dotted `parts` mean; keys of maps (hosts, variables) may hold dots."""
    if not parts:
        return done
    for step, used in _steps(parts, done):
        if found := _resolve(parts[used:], (*done, step)):
            return found
    return None


def _steps(parts: tuple[str, ...], done: Path) -> Iterator[tuple[str | int, int]]:
    types = published_schema.types_at(done)
    if parts[0] in published_schema.keys_at(done):
        yield parts[0], 1
    if "array" in types and parts[0].isascii() and parts[0].isdecimal() and len(parts[0]) < 6:
        yield int(parts[0]), 1
    if published_schema.is_map(done):
        yield from ((".".join(parts[:used]), used) for used in range(1, len(parts) + 1))


def _first_unknown(parts: tuple[str, ...]) -> Any:
    done: Path = ()
    for part in parts:
        step = next((step for step, _ in _steps((part,), done)), None)
        if step is None:
            return unknown_key((*done, part))
        done = (*done, step)
    return unknown_key(done)


def _read_value(text: str, path: Path, option: str) -> Any:
    types = published_schema.types_at(path)
    if types <= {"string", "null"}:
        return None if text == "null" and "null" in types else _checked_text(text, option)
    try:
        return jsonc.read(text).value
    except jsonc.JsonError as error:
        if "string" in types:
            return _checked_text(text, option)
        fix = _json_cure(path)
        raise Refused(option, f"{shown(path)}: {error.message}", fix) from None


def _json_cure(path: Path) -> str:
    if known := sorted(published_schema.keys_at(path)):
        return f"write a JSON object, or set one of its fields: {', '.join(known)}"
    example = next(iter(published_schema.node_at(path).get("examples", ())), None)
    return f"write JSON, for example --set {shown(path)}={shlex.quote(json.dumps(example))}"


def _checked_text(text: str, option: str) -> str:
    # Bytes of the command line that are no UTF-8 arrive as lone surrogates.
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise Refused(option, "the value is not UTF-8", "write it in UTF-8")
    return text
