"""The messages an agent may send: their fields, who may send what about which task, and the
agent's answer to the hello (`welcome`).

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

Check = Callable[[object], bool]
_SHOWN = 80
_NAME = re.compile(r"[\w:.-]{1,80}", re.ASCII)
"""Of a task, also where it was made up."""
_PROCESSES = ("pid", "started", "guard_pid", "guard_started")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= budgets.MESSAGE_TEXT


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 <= value < 1e15  # neither infinite nor NaN


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _is_truth(value: object) -> bool:
    return isinstance(value, bool)


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _all(check: Check) -> Check:
    """Of a list."""
    most = budgets.MESSAGE_LIST
    return lambda value: isinstance(value, list) and len(value) <= most and all(map(check, value))


def _are_ports(value: object) -> bool:
    return isinstance(value, dict) and all(
        _is_whole(port) and 0 < port < 1 << 16 for port in value.values()
    )


def _is_identity(value: object) -> bool:
    """Of an agent (`agent.fencing`): what its own node is given back, and nobody else."""
    return _has_fields(value, {**dict.fromkeys(_PROCESSES, _is_whole), "where": _is_where})


def _is_where(value: object) -> bool:
    numbers, texts = ("pid_namespace", "uid"), ("boot_id", "machine")
    return _has_fields(
        value, {**dict.fromkeys(numbers, _is_whole), **dict.fromkeys(texts, _is_short)}
    )


def _is_short(value: object) -> bool:
    return isinstance(value, str) and len(value) < 1000


def _has_fields(value: object, fields: Mapping[str, Check]) -> bool:
    """An object with these fields and no others."""
    if not isinstance(value, dict) or value.keys() != fields.keys():
        return False
    return all(check(value[name]) for name, check in fields.items())


def _is_path(value: object) -> bool:
    """A name that a file here can have."""
    try:
        return isinstance(value, str) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _is_time(value: object) -> bool:
    """In ns, as `os.utime` takes it; before 1970 it is negative."""
    return isinstance(value, int) and -1 << 63 <= value < 1 << 63


def _is_entry(value: object) -> bool:
    """(path, size, time in ns)."""
    if not isinstance(value, list) or len(value) != 3:
        return False
    path, size, time_ns = value
    if not _is_path(path) or not _is_time(time_ns):
        return False
    return _is_whole(size) or (size == UNREADABLE and path.endswith("/"))


_ALWAYS: Mapping[str, Check] = {"type": _is_text}
_EVER: Mapping[str, Check] = {
    "n": _is_whole,
    "id": _is_whole,
    "attempt": _is_whole,
    "task": _or_none(_is_text),
    "cache": _or_none(_is_text),
    "oom": _or_none(_is_text),
    "peak_rss_bytes": _or_none(_is_whole),
    "pid": _or_none(_is_whole),
    "run_id": _or_none(_is_text),
    "command": _or_none(_is_text),
    "executable": _or_none(_is_path),
    "identity": _is_identity,
    "last_seen": _is_whole,
    "is_unchanged": _is_truth,
    "sha512": _is_text,
}
"""Of fields that any message may have."""
_OF_TASK: Mapping[str, Check] = {"task": _is_text, "attempt": _is_whole}
_SHAPES: Mapping[str, Mapping[str, Check]] = {
    "welcome": {"pid": _is_whole, "guard_pid": _is_whole},
    "refused": {"reason": _is_text},
    "agent_ending": {"signal": _is_whole},
    "ports_held": {"ports": _are_ports},
    "port_taken": {"task": _is_text, "host": _is_text, "port": _is_whole},
    "preload_ready": {"seconds": _is_number},
    "preload_failed": {"error": _is_text},
    "task_started": {**_OF_TASK, "pid": _is_whole},
    "start_failed": {**_OF_TASK, "error": _is_text},
    "task_event": {**_OF_TASK, "event": _is_object},
    "reports_dropped": {**_OF_TASK, "count": _is_whole},
    "task_stopped": {**_OF_TASK, "signal": _is_whole},
    "task_continued": _OF_TASK,
    "task_exited": {
        **_OF_TASK,
        "exit_code": _or_none(_is_whole),
        "signal": _or_none(_is_whole),
        "ended_by": _is_text,
        "duration_s": _is_number,
    },
    "log_lost": {**_OF_TASK, "bytes": _is_whole, "reason": _is_text},
    "unkillable": {"task": _or_none(_is_text), "pids": _all(_is_whole)},
    "wants": {"id": _is_whole, "digests": _all(_is_text)},
    "took": {"id": _is_whole, "digest": _is_text, "at": _is_whole},
    "received": {"id": _is_whole},
    "receive_failed": {"id": _is_whole, "error": _is_text},
    "scanned": {"id": _is_whole, "entries": _all(_is_entry)},
    "read_end": {"id": _is_whole},
    "files_lost": {"error": _is_text},
    "moving": {"id": _is_whole},
    "looked": {"id": _is_whole, "folder": _or_none(_is_text)},
    "guard_lost": {},
    "bye": {},
}
_OURS = frozenset({"link_cut", "link_back"})
"""What a link tells itself, and no agent."""


def is_known(message: Mapping[str, Any]) -> bool:
    """Whether a message that was checked is of a kind that we know; others say nothing to us."""
    return message["type"] in _SHAPES or message["type"] in _OURS


def check(message: Mapping[str, Any]) -> None:
    """Raises ProtocolError for a message without the fields that its kind has, or of others."""
    kind = message.get("type")
    wanted = _SHAPES.get(kind, {}) if isinstance(kind, str) else {}
    optional = {name: test for name, test in _EVER.items() if name in message}
    for name, test in {**_ALWAYS, **optional, **wanted}.items():
        if name not in message or not test(message[name]):
            raise ProtocolError(f"a message {_shown(kind)} whose {name} is {_found(message, name)}")
    if kind in _OURS:
        raise ProtocolError(f"a message {_shown(kind)}, which no agent sends")


def check_owner(
    message: Mapping[str, Any],
    tasks: Collection[str],
    steps: Collection[str] = (),
    *,
    by_hand: Collection[str] = (),
) -> None:
    """Raises ProtocolError for word of what is neither one of the node's `tasks` nor of the
    `steps` that any node takes, and where ports of some of its tasks are missing. Of tasks that
    are started `by_hand` it holds the ports, and knows nothing else."""
    kind = _shown(message["type"])
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
            raise ProtocolError(f"a message {kind} of {_shown(task)}, which is no task of its own")


def check_ended(found: object) -> None:
    """Raises ProtocolError for what is no answer of `agent.fencing.end_lost_run`."""
    names = _all(lambda name: isinstance(name, str) and _NAME.fullmatch(name) is not None)
    fields = {"ended": names, "stays": names, "is_proved": _is_truth, "folder": _or_none(_is_path)}
    if not _has_fields(found, fields):
        raise ProtocolError(f"no answer, but {_shown(found)}")


def _found(message: Mapping[str, Any], name: str) -> str:
    return _shown(message[name]) if name in message else "missing"


def _shown(value: object) -> str:
    """Short: it may be megabytes."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"


Frame = tuple[bytes, bytes]
"""Kind and payload."""

_READ_BYTES = 1 << 18


class Refused(Exception):
    """The agent answered the hello, but will not serve us."""


async def welcome(
    reader: asyncio.StreamReader, decoder: protocol.Decoder
) -> tuple[dict[str, Any], list[Frame]]:
    """The agent's answer to a hello, and the frames that came along with it."""
    while data := await reader.read(_READ_BYTES):
        frames = list(decoder.feed(data))
        for number, (kind, payload) in enumerate(frames):
            if kind == protocol.CONTROL:
                message = protocol.read_control(payload)
                check(message)
                if message.get("type") == "refused":
                    raise Refused(str(message.get("reason")))
                if message["type"] != "welcome":
                    raise protocol.ProtocolError(f"no welcome, but {str(message['type'])[:80]!r}")
                return message, frames[number + 1 :]
    shown = f"; it said: {decoder.noise!r}" if decoder.noise else ""
    raise ConnectionResetError(f"the agent closed the connection{shown}")
