"""The base of messages and events: a class declares its fields, which build, write and check it.

mypy treats these classes like frozen dataclasses. They are none: importing `dataclasses` costs an
agent 8 ms and 1.8 MB, the class of each event would cost a command half a millisecond, and
pydantic's checks of all messages would cost a coordinator 60 ms.
"""

from __future__ import annotations

import math
import os
import re

from tfcluster.agent import budgets
from tfcluster.agent.protocol import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

    M = TypeVar("M", bound="Message")
    S = TypeVar("S", bound="Struct")
    Read = Callable[[Any], Any]
    """A function that returns the value of a field; raises ValueError for an invalid one."""
else:

    def dataclass_transform(**_options):
        return lambda cls: cls


UNREADABLE = -1
"""The size that marks a folder in a listing that cannot be read, as opposed to an empty one."""
_LIMIT = 1 << 63
_SHOWN_CHARACTERS = 80
_NODE_NAME = re.compile(r"[\w:.-]{1,80}", re.ASCII)
_FOLDER = re.compile(r"/[^\x00-\x1f\x7f-\x9f]*")
_LOAD_CALL = re.compile(
    r"(?:tf\.train\.Checkpoint\([\w=, ]*\)\.restore|(?:tf_)?keras\.models\.load_model"
    r"|model\.load_weights)\(\{path\}\)(?:\.expect_partial\(\))?"
)
"""The calls of the workers' `save_hooks`. The user pastes them, so a host cannot send others."""
_HOST = re.compile(r"[\w.-]{1,253}|\[[\da-f:.]{2,45}\]", re.ASCII | re.IGNORECASE)
"""A name or an address; that of IPv6 in brackets."""


def _type_of(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Struct:
    """A value with the fields that its class annotates; the class name in snake case is `type`."""

    type: ClassVar[str] = ""
    fields: ClassVar[Mapping[str, Any]] = {}
    """Name → annotation, or what a subclass makes of it."""

    def __init_subclass__(cls) -> None:
        cls.type = _type_of(cls.__name__)
        own = getattr(cls, "__annotations__", {}).items()
        named = {name: text for name, text in own if not text.startswith("ClassVar")}
        cls.fields = {**cls.fields, **named}

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)

    def __eq__(self, other: object) -> bool:
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.fields)
        return type(self) is type(other) and all(mine == theirs for mine, theirs in pairs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


class Event(Struct):
    """Something that happened in a run: a line of ``events.jsonl``."""

    def facts(self) -> dict[str, Any]:
        """Return type and fields as the line has them: without those that are None."""
        pairs = ((name, getattr(self, name)) for name in self.fields)
        return {"type": self.type, **{name: value for name, value in pairs if value is not None}}


class Message(Struct):
    """A value that travels between coordinator, agent and task."""

    fields: ClassVar[Mapping[str, Read]] = {}
    is_exact: ClassVar[bool] = False
    """True if unknown fields are an error; else they are ignored."""
    is_lenient: ClassVar[bool] = False
    """True if an invalid value for a field with a default is ignored; else it is an error."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        readers = {n: _reader(f) if isinstance(f, str) else f for n, f in cls.fields.items()}
        cls.fields = readers
        _CLASSES[cls.type] = cls

    def to_json(self) -> dict[str, Any]:
        """Return the control message; `protocol.control_frame` converts messages inside it."""
        return {"type": self.type, **vars(self)}

    @classmethod
    def read(cls, data: object) -> Self:
        """Return the message with the fields in `data`. Raises ProtocolError."""
        if not isinstance(data, dict):
            raise ProtocolError(f"{cls.type}: {shorten(data)}")
        if cls.is_exact and (unknown := data.keys() - cls.fields.keys() - {"type"}):
            names = shorten(", ".join(sorted(map(str, unknown))))
            raise ProtocolError(f"a message {cls.type!r} with unknown fields: {names}")
        values = {}
        for name, read in cls.fields.items():
            has_default = hasattr(cls, name)
            if name not in data and not has_default:
                raise ProtocolError(f"a message {cls.type!r} whose {name} is missing")
            try:
                if name in data and not (cls.is_lenient and has_default and data[name] is None):
                    values[name] = read(data[name])
            except ValueError:
                if not (cls.is_lenient and has_default):
                    shown = shorten(data[name])
                    raise ProtocolError(f"a message {cls.type!r} whose {name} is {shown}") from None
        return cls(**values)


def parse(message: Mapping[str, Any], family: type[M]) -> M | None:
    """Return the message, whose class is below `family`; None for any other type.

    Raises ProtocolError if the type is no string, or a field is invalid.
    """
    kind = message.get("type")
    if not isinstance(kind, str):
        shown = shorten(kind) if "type" in message else "missing"
        raise ProtocolError(f"a message {shorten(kind)} whose type is {shown}")
    cls = _CLASSES.get(kind, Message)
    return cls.read(message) if issubclass(cls, family) else None


def replace(value: S, **fields: Any) -> S:
    """Return `value` with others in these fields."""
    return type(value)(**{**vars(value), **fields})


def shorten(value: object) -> str:
    """Return the start of `repr(value)`, which may be megabytes."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"


def _reader(annotation: str) -> Read:
    """Return what reads a field with this annotation: a name, ``list[…]`` or ``… | None``."""
    if annotation.endswith(" | None"):
        read = _reader(annotation[:-7])
        return lambda value: None if value is None else read(value)
    if annotation.startswith("list["):
        return _list_of(_reader(annotation[5:-1]))
    return _READERS.get(annotation) or _CLASSES[_type_of(annotation)].read


def _list_of(read: Read) -> Read:
    def read_all(value: object) -> list[Any]:
        if not isinstance(value, list) or len(value) > budgets.MESSAGE_LIST:
            raise ValueError
        return [read(item) for item in value]

    return read_all


def _mapping_of(read: Read) -> Read:
    return lambda value: {name: read(item) for name, item in _object(value).items()}


def _valid(test: Callable[[Any], object]) -> Read:
    def read(value: object) -> object:
        if not test(value):
            raise ValueError
        return value

    return read


def _is_number(value: object, least: float, below: float) -> bool:
    """Return False for infinite numbers and NaN, too."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and least <= value < below  # type: ignore[operator]


def _integer(least: int, below: int = _LIMIT) -> Read:
    return _valid(lambda value: isinstance(value, int) and _is_number(value, least, below))


def _rounded(least: int) -> Read:
    """Read an integer, also from a float without a fraction, such as a step from NumPy."""
    is_whole = _valid(lambda value: _is_number(value, least, _LIMIT) and value == int(value))
    return lambda value: int(is_whole(value))


def _number(least: float) -> Read:
    is_finite = _valid(lambda value: _is_number(value, least, 1e15))
    return lambda value: float(is_finite(value))


def _text(most: float = math.inf) -> Read:
    return _valid(lambda value: isinstance(value, str) and len(value) <= most)


def _cut_text(most: int) -> Read:
    is_text = _text()
    return lambda value: text if len(text := is_text(value)) <= most else f"{text[:most]} …"


def _entry(value: object) -> tuple[str, int, int]:
    """Read an item of a listing; a time before 1970 is negative."""
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError
    path, size, time_ns = _READERS["Path"](value[0]), value[1], _READERS["int"](value[2])
    is_unreadable = size == UNREADABLE and path.endswith("/")
    return path, size if is_unreadable else _READERS["Unsigned"](size), time_ns


def _metrics(value: object) -> dict[str, float]:
    """Read the numbers among the metrics, which may be NaN or infinite."""
    metrics = {}
    for name, number in list(_object(value).items())[: budgets.REPORT_NAMES]:
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            try:
                metrics[name[: budgets.REPORT_NAME]] = float(number)
            except OverflowError:  # an integer of 400 digits
                metrics[name[: budgets.REPORT_NAME]] = math.inf if number > 0 else -math.inf
    return metrics


def _values(value: object) -> dict[str, Any]:
    """Read hyperparameters by name: numbers, booleans, None, and anything else as a string."""
    pairs = list(_object(value).items())[: budgets.REPORT_NAMES]
    return {name[: budgets.REPORT_NAME]: _plain(item) for name, item in pairs}


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    for read in (_READERS["Integer"], _READERS["Real"]):
        try:
            return read(value)
        except ValueError:
            continue
    return str(value)[: budgets.REPORT_NAME]


_object = _valid(lambda value: isinstance(value, dict))
_CLASSES: dict[str, type[Message]] = {}
"""Type → class, for messages and for parts of them."""
_READERS: dict[str, Read] = {
    "bool": _valid(lambda value: isinstance(value, bool)),
    "int": _integer(-_LIMIT),
    "float": _number(0),
    "str": _text(),
    "bytes": _valid(lambda value: isinstance(value, bytes)),
    "Strings": _list_of(_text()),
    "Env": _mapping_of(_text()),
    "Json": _object,
    # What a node sends.
    "Unsigned": _integer(0),
    "Ports": _mapping_of(_integer(1, 1 << 16)),
    "Text": _text(budgets.MESSAGE_TEXT),
    "NodeName": _valid(lambda value: isinstance(value, str) and _NODE_NAME.fullmatch(value)),
    "Host": _valid(lambda value: isinstance(value, str) and _HOST.fullmatch(value)),
    "Path": _valid(lambda value: isinstance(value, str) and b"\0" not in os.fsencode(value)),
    "Folder": _valid(
        lambda value: _READERS["Text"](value) and _FOLDER.fullmatch(value)  # shown in commands
    ),
    "Entry": _entry,
    # What a task sends; long strings are cut.
    "Integer": _rounded(1 - _LIMIT),
    "Step": _rounded(0),
    "Real": _number(-1e15),
    "Name": _cut_text(budgets.REPORT_NAME),
    "Line": _cut_text(budgets.NOTE_TEXT),
    "LoadCall": _valid(lambda value: _READERS["Line"](value) and _LOAD_CALL.fullmatch(value)),
    "LongText": _cut_text(budgets.REPORT_TEXT),
    "Traceback": _cut_text(budgets.REPORT_TRACEBACK),
    "Metrics": _metrics,
    "Values": _values,
}
