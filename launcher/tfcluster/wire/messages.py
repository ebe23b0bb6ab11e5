"""The messages an agent may send: their fields, who may send what about which task, and the
agent's answer to the hello (`read_welcome`).

A node is not trusted: `check`, `check_owner` and `check_ended` raise ProtocolError for every
message that an agent of this version would not send.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tfcluster.agent import budgets, protocol
from tfcluster.agent.files.outgoing import UNREADABLE
from tfcluster.agent.protocol import ProtocolError

Frame = tuple[bytes, bytes]
"""The kind and the payload of a frame."""
Check = Callable[[object], bool]

_READ_BYTES = 1 << 18
_SHOWN_CHARACTERS = 80
_NAME = re.compile(r"[\w:.-]{1,80}", re.ASCII)
"""A task's name, in an answer that may be made up."""
_PROCESSES = ("pid", "started", "guard_pid", "guard_started")


class Refused(Exception):
    """The agent answered the hello with a refusal; the text is its reason."""


def _is_string(value: object) -> bool:
    return isinstance(value, str) and len(value) <= budgets.MESSAGE_TEXT


def _is_unsigned(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 <= value < 1e15  # neither infinite nor NaN


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _is_boolean(value: object) -> bool:
    return isinstance(value, bool)


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check) -> Check:
    most = budgets.MESSAGE_LIST
    return lambda value: isinstance(value, list) and len(value) <= most and all(map(check, value))


def _are_ports(value: object) -> bool:
    return isinstance(value, dict) and all(
        _is_unsigned(port) and 0 < port < 1 << 16 for port in value.values()
    )


def _is_identity(value: object) -> bool:
    """An agent's identity (`agent.fencing`), which is given back to its own node only."""
    return _has_fields(value, {**dict.fromkeys(_PROCESSES, _is_unsigned), "where": _is_location})


def _is_location(value: object) -> bool:
    numbers, texts = ("pid_namespace", "uid"), ("boot_id", "machine")
    return _has_fields(
        value, {**dict.fromkeys(numbers, _is_unsigned), **dict.fromkeys(texts, _is_short_string)}
    )


def _is_short_string(value: object) -> bool:
    return isinstance(value, str) and len(value) < 1000


def _has_fields(value: object, fields: Mapping[str, Check]) -> bool:
    if not isinstance(value, dict) or value.keys() != fields.keys():
        return False
    return all(check(value[name]) for name, check in fields.items())


def _is_path(value: object) -> bool:
    try:
        return isinstance(value, str) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _is_time(value: object) -> bool:
    """A time in ns, as `os.utime` takes it; before 1970 it is negative."""
    return isinstance(value, int) and -1 << 63 <= value < 1 << 63


def _is_entry(value: object) -> bool:
    """An item of a listing: (path, size, time in ns)."""
    if not isinstance(value, list) or len(value) != 3:
        return False
    path, size, time_ns = value
    if not _is_path(path) or not _is_time(time_ns):
        return False
    return _is_unsigned(size) or (size == UNREADABLE and path.endswith("/"))


_REQUIRED_FIELDS: Mapping[str, Check] = {"type": _is_string}
_OPTIONAL_FIELDS: Mapping[str, Check] = {
    "n": _is_unsigned,
    "id": _is_unsigned,
    "attempt": _is_unsigned,
    "task": _or_none(_is_string),
    "cache": _or_none(_is_string),
    "oom": _or_none(_is_string),
    "peak_rss_bytes": _or_none(_is_unsigned),
    "pid": _or_none(_is_unsigned),
    "run_id": _or_none(_is_string),
    "command": _or_none(_is_string),
    "executable": _or_none(_is_path),
    "identity": _is_identity,
    "last_seen": _is_unsigned,
    "is_unchanged": _is_boolean,
    "sha512": _is_string,
}
"""Fields that any message may have."""
_TASK_FIELDS: Mapping[str, Check] = {"task": _is_string, "attempt": _is_unsigned}
_FIELDS_BY_TYPE: Mapping[str, Mapping[str, Check]] = {
    "welcome": {"pid": _is_unsigned, "guard_pid": _is_unsigned},
    "refused": {"reason": _is_string},
    "agent_ending": {"signal": _is_unsigned},
    "ports_held": {"ports": _are_ports},
    "port_taken": {"task": _is_string, "host": _is_string, "port": _is_unsigned},
    "preload_ready": {"seconds": _is_number},
    "preload_failed": {"error": _is_string},
    "task_started": {**_TASK_FIELDS, "pid": _is_unsigned},
    "start_failed": {**_TASK_FIELDS, "error": _is_string},
    "task_event": {**_TASK_FIELDS, "event": _is_object},
    "reports_dropped": {**_TASK_FIELDS, "count": _is_unsigned},
    "task_stopped": {**_TASK_FIELDS, "signal": _is_unsigned},
    "task_continued": _TASK_FIELDS,
    "task_exited": {
        **_TASK_FIELDS,
        "exit_code": _or_none(_is_unsigned),
        "signal": _or_none(_is_unsigned),
        "ended_by": _is_string,
        "duration_s": _is_number,
    },
    "log_lost": {**_TASK_FIELDS, "bytes": _is_unsigned, "reason": _is_string},
    "unkillable": {"task": _or_none(_is_string), "pids": _list_of(_is_unsigned)},
    "wants": {"id": _is_unsigned, "digests": _list_of(_is_string)},
    "took": {"id": _is_unsigned, "digest": _is_string, "at": _is_unsigned},
    "received": {"id": _is_unsigned},
    "receive_failed": {"id": _is_unsigned, "error": _is_string},
    "scanned": {"id": _is_unsigned, "entries": _list_of(_is_entry)},
    "read_end": {"id": _is_unsigned},
    "files_lost": {"error": _is_string},
    "moving": {"id": _is_unsigned},
    "looked": {"id": _is_unsigned, "folder": _or_none(_is_string)},
    "guard_lost": {},
    "bye": {},
}
_LINK_TYPES = frozenset({"link_cut", "link_back"})
"""Messages that `link` makes itself and no agent may send."""


def is_known(message: Mapping[str, Any]) -> bool:
    """Return whether a checked message has a type this version knows; others are ignored."""
    return message["type"] in _FIELDS_BY_TYPE or message["type"] in _LINK_TYPES


def check(message: Mapping[str, Any]) -> None:
    """Raise ProtocolError for a message with a missing or invalid field, or of a type that only
    `link` makes."""
    kind = message.get("type")
    required = _FIELDS_BY_TYPE.get(kind, {}) if isinstance(kind, str) else {}
    optional = {name: test for name, test in _OPTIONAL_FIELDS.items() if name in message}
    for name, test in {**_REQUIRED_FIELDS, **optional, **required}.items():
        if name not in message or not test(message[name]):
            found = _shorten(message[name]) if name in message else "missing"
            raise ProtocolError(f"a message {_shorten(kind)} whose {name} is {found}")
    if kind in _LINK_TYPES:
        raise ProtocolError(f"a message {_shorten(kind)}, which no agent sends")


def check_owner(
    message: Mapping[str, Any],
    tasks: Collection[str],
    steps: Collection[str] = (),
    *,
    by_hand: Collection[str] = (),
) -> None:
    """Raise ProtocolError for a message about a task that is not on the node.

    `tasks`: the node's own. `steps`: names that any node may use, such as the prepare step.
    `by_hand`: tasks the user starts, about which an agent may report ports only. Also raised if
    ports of some of the node's tasks are missing.
    """
    kind = _shorten(message["type"])
    named = [message["task"]] if message.get("task") is not None else []
    if message["type"] in ("ports_held", "port_taken"):
        tasks = {*tasks, *by_hand}
    if message["type"] == "ports_held":
        named += message["ports"]
        if missing := set(tasks) - set(message["ports"]):
            raise ProtocolError(f"a message {kind} without {', '.join(sorted(missing))}")
    if message["type"] == "log":
        named.append(message["name"].rpartition("/")[0])
    for task in named:
        if task not in tasks and task not in steps:
            raise ProtocolError(f"a message {kind} about {_shorten(task)}, which is not its task")


def check_ended(found: object) -> None:
    """Raise ProtocolError unless `found` is a valid answer of `agent.fencing.end_lost_run`."""
    names = _list_of(lambda name: isinstance(name, str) and _NAME.fullmatch(name) is not None)
    fields = {
        "ended": names,
        "stays": names,
        "is_proved": _is_boolean,
        "folder": _or_none(_is_path),
    }
    if not _has_fields(found, fields):
        raise ProtocolError(f"invalid answer: {_shorten(found)}")


def _shorten(value: object) -> str:
    """Return the start of `repr(value)`, which may be megabytes."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"


async def read_welcome(
    reader: asyncio.StreamReader, decoder: protocol.Decoder
) -> tuple[dict[str, Any], list[Frame]]:
    """Return the agent's answer to a hello, and the frames that arrived with it.

    Raises Refused, ProtocolError, and ConnectionResetError if the agent closed the connection.
    """
    while data := await reader.read(_READ_BYTES):
        frames = list(decoder.feed(data))
        for number, (kind, payload) in enumerate(frames):
            if kind == protocol.CONTROL:
                message = protocol.read_control(payload)
                check(message)
                if message.get("type") == "refused":
                    raise Refused(str(message.get("reason")))
                if message["type"] != "welcome":
                    raise ProtocolError(f"expected a welcome, got {_shorten(message['type'])}")
                return message, frames[number + 1 :]
    shown = f"; its output: {decoder.noise!r}" if decoder.noise else ""
    raise ConnectionResetError(f"the agent closed the connection{shown}")
