"""Messages as tests write them: plain JSON on one side, the catalogue's classes on the other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tfcluster.agent import catalogue as msg
from tfcluster.agent.message_fields import Message, parse
from tfcluster.wire.messages import read_report as read_report

_BY_NAME: Mapping[str, Any] = {
    "task": "worker:1",
    "attempt": 1,
    "ports": {"worker:1": 2222},
    "event": {"type": "task_ready"},
    "identity": None,
    "tuner": "worker-1",
    "status": "COMPLETED",
    "fault": "kill worker:1 at step 2",
    "ended_by": "itself",
    "tasks": ["worker:1"],
    "port": 2222,
}
_BY_TYPE: Mapping[str, Any] = {
    **{"bool": False, "int": 5, "float": 1.5, "str": "a", "Strings": ["a"], "Env": {"A": "1"}},
    **{"Json": {}, "Unsigned": 5, "Ports": {"worker:1": 2222}, "Text": "a", "NodeName": "agent"},
    **{"Host": "10.20.0.1"},
    **{"Path": "/a", "Entry": ["ckpt-1.index", 1, 2], "Integer": 3, "Step": 7, "Real": 0.5},
    **{"Name": "a", "Line": "one line", "LongText": "a.py", "Traceback": "Traceback …"},
    **{"Metrics": {"loss": 0.5}, "Values": {"lr": 0.1}, "Folder": "/home/a/.cache/tfcluster"},
    **{"LoadCall": "model.load_weights({path})"},
}


def kinds_of(family: type[Message]) -> list[type[Message]]:
    """Return the messages of the catalogue below `family`."""
    found = [below for cls in family.__subclasses__() for below in (cls, *kinds_of(cls))]
    known = [cls for cls in found if cls.__module__ == msg.__name__ and not cls.__subclasses__()]
    return list(dict.fromkeys(known))


def sample(cls: type[Message]) -> dict[str, Any]:
    """Return a valid message with all fields, about the task worker:1 in attempt 1."""
    return {"type": cls.type, **_fields_of(cls)}


def _fields_of(cls: type[Message]) -> dict[str, Any]:
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        texts |= vars(base).get("__annotations__", {})
    plain = {name: text.removesuffix(" | None") for name, text in texts.items()}
    return {
        name: _value(name, text) for name, text in plain.items() if not text.startswith("ClassVar")
    }


def _value(name: str, text: str) -> Any:
    inner = text.removeprefix("list[").removesuffix("]")
    record = getattr(msg, inner, None)
    if isinstance(record, type) and issubclass(record, msg.Part):
        value: Any = _fields_of(record)
    elif inner == text and name in _BY_NAME:
        return _BY_NAME[name]
    else:
        value = _BY_TYPE[inner]
    return value if inner == text else [value]


def plain(message: Message) -> dict[str, Any]:
    """Return a message as it is sent."""
    found: dict[str, Any] = json.loads(json.dumps(message.to_json(), default=vars))
    return found


def read_order(message: Mapping[str, Any]) -> msg.Order:
    """Return the order, as an agent reads it."""
    order = parse(message, msg.Order)
    assert order is not None
    return order


def task_report(kind: str, **facts: Any) -> msg.TaskReport:
    """Return a report of a task, of which a test may leave out what it does not need."""
    (cls,) = (cls for cls in msg.TaskReport.__subclasses__() if cls.type == kind)
    return cls(**facts)
