"""Dataclasses to JSON and back, by the types of their fields: for the files that tfcluster writes.

A reader checks every value, ignores keys that it does not know, and gives a missing field its
default, so that older and newer versions read each other's files. No pydantic: `ps` reads states.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

T = TypeVar("T")
Reader = Callable[[Any], Any]

ONLY_IF_SET: Final[Mapping[str, bool]] = {"only_if_set": True}
"""The metadata of a field that is left out of the JSON while it is None, False or empty."""
_LARGEST_INTEGER: Final = 1 << 63


class Misfit(ValueError):
    """The value does not have the type; the reader of the object around it names the field."""


def to_json(value: Any) -> Any:
    """Return `value` as JSON values; a class may have a `to_json` of its own."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return object_to_json(value)
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    return [to_json(item) for item in value] if isinstance(value, list | tuple) else value


def object_to_json(value: Any) -> dict[str, Any]:
    """Return a dataclass as a JSON object."""
    kind: Any = type(value)
    pairs = ((name, getattr(value, name), always) for name, always in _written(kind))
    return {name: to_json(item) for name, item, always in pairs if always or item}


def from_json(kind: type[T], data: object) -> T:
    """Return the value of `kind` in `data`; a class may have a `from_json` of its own.

    A callable in an ``Annotated`` type reads the value instead of the type. Raises ValueError.
    """
    hint: Any = kind
    value: T = reader(hint)(data)
    return value


@functools.cache
def reader(kind: Any) -> Reader:
    """Return the function that reads a value of a type; it raises ValueError."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return next(filter(callable, args[1:]))
    if origin in (Union, UnionType):
        return _reader_of_union(args)
    if origin is Literal:
        return _checked(lambda value: value in args)
    if origin is tuple or origin is list:
        return _reader_of_list(origin, reader(args[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _reader_of_mapping(reader(args[1]))
    if hasattr(kind, "from_json"):
        return _translated(kind.from_json)
    if is_dataclass(kind):
        return _reader_of_object(kind)
    if issubclass(kind, Enum):
        return _translated(kind)
    return _PLAIN[kind]


def _checked(is_valid: Callable[[Any], bool]) -> Reader:
    def read(value: Any) -> Any:
        if is_valid(value):
            return value
        raise Misfit

    return read


def _is_integer(value: Any) -> bool:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole and -_LARGEST_INTEGER < value < _LARGEST_INTEGER


def _is_number(value: Any) -> bool:
    """Return whether `value` is a finite number: all comparisons with NaN are false."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and -1e15 < value < 1e15


_PLAIN: Final[Mapping[Any, Reader]] = {
    Any: lambda value: value,
    object: lambda value: value,
    str: _checked(lambda value: isinstance(value, str)),
    bool: _checked(lambda value: isinstance(value, bool)),
    int: _checked(_is_integer),
    float: _checked(_is_number),
    type(None): _checked(lambda value: value is None),
}


def _translated(read_text: Callable[[Any], Any]) -> Reader:
    def read(value: Any) -> Any:
        try:
            return read_text(value)
        except (TypeError, ValueError):
            raise Misfit from None

    return read


def _reader_of_union(kinds: tuple[Any, ...]) -> Reader:
    readers = [reader(kind) for kind in kinds if kind is not type(None)]
    is_optional = len(readers) < len(kinds)

    def read(value: Any) -> Any:
        if value is None and is_optional:
            return None
        for read_one in readers[:-1]:
            try:
                return read_one(value)
            except Misfit:
                continue
        return readers[-1](value)

    return read


def _reader_of_list(kind: Callable[[Any], Any], read_item: Reader) -> Reader:
    def read(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return kind(map(read_item, value))
        raise Misfit

    return read


def _reader_of_mapping(read_item: Reader) -> Reader:
    def read(value: Any) -> dict[str, Any]:
        if isinstance(value, dict):
            return {key: read_item(item) for key, item in value.items()}
        raise Misfit

    return read


def _reader_of_object(kind: Any) -> Reader:
    known = {f.name: f for f in fields(kind) if f.init}
    hints = get_type_hints(kind, include_extras=True)
    readers = {name: reader(hints[name]) for name in known}
    required = [n for n, f in known.items() if f.default is f.default_factory is MISSING]

    def read(data: Any) -> Any:
        if not isinstance(data, dict):
            raise Misfit
        values = {}
        for name in readers.keys() & data.keys():
            try:
                values[name] = readers[name](data[name])
            except Misfit:
                raise ValueError(f"{name} cannot be {repr(data[name])[:60]}") from None
        if missing := [name for name in required if name not in values]:
            raise ValueError(f"a field is missing: {', '.join(missing)}")
        return kind(**values)

    return read


@functools.cache
def _written(kind: Any) -> tuple[tuple[str, bool], ...]:
    """Return the fields of a dataclass, and whether each is written while it is empty."""
    found = (f for f in fields(kind) if f.init)
    return tuple((f.name, "only_if_set" not in f.metadata) for f in found)
