"""Dataclasses to JSON and back, by the types of their fields: for the files that tfcluster writes.

A reader checks every value, ignores keys that it does not know, and gives a missing field its
default, so that older and newer versions read each other's files. No pydantic: `ps` reads states.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Reader = Callable[[Any], Any]

ONLY_IF_SET = {"only_if_set": True}
"""The metadata of a field that is left out of the JSON while it is None, False or empty."""


class _FieldError(ValueError):
    """An error that names its field already."""


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
    return {
        field.name: to_json(item)
        for field in fields(value)
        if (item := getattr(value, field.name)) or field.metadata != ONLY_IF_SET
    }


def from_json(kind: type[T], data: object) -> T:
    """Return the value of `kind` in `data`; a class may have a `from_json` of its own.

    A callable in an ``Annotated`` type reads the value instead of the type. Raises ValueError.
    """
    hint: Any = kind
    value: T = reader(hint)(data)
    return value


@functools.cache
def reader(kind: Any) -> Reader:
    """Return the function that reads a value of a type; it raises ValueError or TypeError."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return next(filter(callable, args[1:]))
    if origin in (Union, UnionType):
        return _reader_of_union(args)
    if origin is Literal:
        return _checked(lambda value: value in args)
    if origin is tuple and Ellipsis not in args:
        readers = [reader(item) for item in args]
        return lambda value: tuple(r(v) for r, v in zip(readers, _list(value), strict=True))
    if origin in (tuple, list, Sequence):
        read_item, make = reader(args[0]), list if origin is list else tuple
        return lambda value: make(map(read_item, _list(value)))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        read_item = reader(args[1])
        return lambda value: {key: read_item(item) for key, item in _object(value).items()}
    if is_dataclass(kind):
        return getattr(kind, "from_json", None) or _reader_of_object(kind)
    return _PLAIN.get(kind, kind)


def _checked(is_valid: Callable[[Any], bool]) -> Reader:
    def read(value: Any) -> Any:
        if is_valid(value):
            return value
        raise ValueError(f"not valid: {repr(value)[:60]}")

    return read


def _is_number(value: Any, limit: float = 1e15) -> bool:
    """Return whether `value` is a finite number: all comparisons with NaN are false."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and -limit < value < limit


_list = _checked(lambda value: isinstance(value, list | tuple))
_object = _checked(lambda value: isinstance(value, dict))
_PLAIN: Mapping[Any, Reader] = {
    Any: lambda value: value,
    object: lambda value: value,
    str: _checked(lambda value: isinstance(value, str)),
    bool: _checked(lambda value: isinstance(value, bool)),
    int: _checked(lambda value: isinstance(value, int) and _is_number(value, 1 << 63)),
    float: _checked(_is_number),
}


def _reader_of_union(kinds: Sequence[Any]) -> Reader:
    *others, last = (reader(kind) for kind in kinds if kind is not type(None))
    is_optional = type(None) in kinds

    def read(value: Any) -> Any:
        if value is None and is_optional:
            return None
        for read_one in others:
            with contextlib.suppress(ValueError, TypeError):
                return read_one(value)
        return last(value)

    return read


def _reader_of_object(kind: Any) -> Reader:
    hints = get_type_hints(kind, include_extras=True)
    known = [f for f in fields(kind) if f.init]
    readers = {f.name: reader(hints[f.name]) for f in known}
    required = [f.name for f in known if f.default is f.default_factory is MISSING]

    def read(data: Any) -> Any:
        values = {}
        for name in readers.keys() & _object(data).keys():
            try:
                values[name] = readers[name](data[name])
            except _FieldError:
                raise
            except (TypeError, ValueError):
                raise _FieldError(f"{name} cannot be {repr(data[name])[:60]}") from None
        if missing := [name for name in required if name not in values]:
            raise _FieldError(f"a field is missing: {', '.join(missing)}")
        return kind(**values)

    return read
