"""Summarizes a trace of TensorFlow's profiler: where a task's time went, and its longest ops.

A trace is an `XSpace` (tsl/profiler/protobuf/xplane.proto): planes (the host, each GPU) with lines
(threads, streams) of events. It is read without TensorFlow, which the launcher never imports.

Every moment counts once, for the first of these that was going on: `compute` (an op, or with a GPU
a kernel), `collective`, `input` (the step waits for its next batch), else `idle`. So the last three
are what they cost: a collective, or an input pipeline, that runs beside ops costs nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final

from tfcluster.agent.error_text import describe_error

PARTS: Final = ("compute", "collective", "input", "idle")

_OP: Final = re.compile(r"([\w.][\w./>-]*):([A-Z_]\w*)", re.ASCII)
"""The event of an op in a graph: its name and type (tsl/profiler/utils/tf_op_utils.cc)."""
_EAGER_OP: Final = re.compile(r"EagerLocalExecute: ([A-Z_](?!_inference_|_forward_|_backward_)\w*)")
"""The event of an op outside of a graph. That of a function lasts while its ops run."""
_REQUEST: Final = "EagerService"
"""The name of the event of a request from another task, in which ops may run."""
_GET_NEXT: Final = re.compile(r"(IteratorGetNext\w*?)(?:Op::DoCompute)?")
_COLLECTIVE: Final = re.compile(r"Collective|Nccl|nccl")
_INPUT_THREADS: Final = "tf_data_"
"""The threads of tf.data, which prepare batches beside the step."""
_FUNCTION: Final = re.compile(r"(?:Stateful)?PartitionedCall(?:_\d+)?/")

_Span = tuple[int, int]
"""Begin and end in picoseconds since the trace began."""


class TraceError(Exception):
    """The file is no trace; the text is the reason."""


@dataclass(frozen=True, slots=True)
class OpTime:
    """The time of one op over the whole trace."""

    name: str
    type: str
    part: str
    """``compute``, ``collective`` or ``input``."""
    count: int
    seconds: float
    """The sum over all threads, without the ops inside of it."""


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """The parts of a task's time in a trace, and its ops."""

    seconds: float
    parts: dict[str, float]
    """Part (`PARTS`) → its seconds; together they are the length of the trace."""
    ops: tuple[OpTime, ...]
    """All ops, the longest first."""


def summarize(path: Path, seconds: float = 0.0) -> TraceSummary:
    """Summarize the trace in a file that is `seconds` long (0: up to its last event).

    Raises TraceError, OSError.
    """
    try:
        events = list(_read_events(path.read_bytes()))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{path.name} is not a trace: {error!r}") from error
    if any(event.is_of_gpu for event in events):  # then the ops of the host start kernels
        events = [event for event in events if event.is_of_gpu or event.part != "compute"]
    spans = defaultdict[str, list[_Span]](list)
    for event in events:
        spans[event.part].append(event.span)
    end = round(max(0.0, seconds) * 1e12) or max((event.span[1] for event in events), default=0)
    parts, known, covered = dict[str, float](), list[_Span](), 0
    for part in PARTS[:-1]:
        known = _merge([*known, *spans[part]], end)
        length = sum(stop - start for start, stop in known)
        parts[part], covered = (length - covered) / 1e12, length
    parts["idle"] = (end - covered) / 1e12
    return TraceSummary(end / 1e12, parts, _sum_ops(events))


@dataclass(slots=True)
class _Event:
    """The event of an op or a kernel."""

    span: _Span
    name: str
    type: str
    part: str
    line: int
    """The number of its thread or stream."""
    is_of_gpu: bool


def _sum_ops(events: Sequence[_Event]) -> tuple[OpTime, ...]:
    own_time, counts = defaultdict[tuple[str, str, str], int](int), defaultdict[Any, int](int)
    outer: list[_Event] = []
    for event in sorted(events, key=lambda event: (event.line, event.span[0], -event.span[1])):
        key, length = (event.name, event.type, event.part), event.span[1] - event.span[0]
        while outer and (outer[-1].line != event.line or outer[-1].span[1] < event.span[1]):
            outer.pop()
        around = (outer[-1].name, outer[-1].type, outer[-1].part) if outer else None
        if key != around:  # an eager op has an event in its event
            counts[key] += 1
            own_time[key] += length
            if around is not None:
                own_time[around] -= length
        outer.append(event)
    ops = (OpTime(*key, counts[key], length / 1e12) for key, length in own_time.items())
    return tuple(sorted(ops, key=lambda op: -op.seconds))


def _merge(spans: Sequence[_Span], end: int) -> list[_Span]:
    """Return the union of `spans` up to `end`, in order."""
    merged: list[_Span] = []
    for start, stop in sorted(spans):
        stop = min(stop, end)
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        elif start < stop:
            merged.append((start, stop))
    return merged


def describe_trace(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what is known of a task's trace, for JSON; None if it is not in `folder` yet.

    `facts`: those of the task in the event `profile_finished`.
    """
    if "problem" in facts:
        return {"problem": facts["problem"]}
    path = folder / PurePath(facts["file"]).name
    try:
        if path.stat().st_size != facts["bytes"]:
            return None
        summary = summarize(path, facts["seconds"])
    except FileNotFoundError:
        return None
    except (OSError, TraceError) as error:
        return {"problem": describe_error(error)}
    steps = {name: facts[name] for name in ("first", "last") if name in facts}
    ops = [{name: getattr(op, name) for name in OpTime.__slots__} for op in summary.ops]
    return {"trace": str(path), **steps, "seconds": summary.seconds, "parts": summary.parts,
            "ops": ops}  # fmt: skip


# -- the file -------------------------------------------------------------------------------


def _read_events(space: bytes) -> Iterator[_Event]:
    number = 0
    for plane in _all(space, 1):
        name = _text(_one(plane, 2))
        if name != "/host:CPU" and not name.startswith("/device:GPU:"):
            continue
        names, stats = _names(plane, 4), _names(plane, 5)
        for line in _all(plane, 3):
            number += 1
            title = _text(_one(line, 2))
            if name != "/host:CPU":
                if title.startswith("Stream"):
                    yield from _gpu_events(line, names, stats, number)
            elif not title.startswith(_INPUT_THREADS) or "get_next" in title:
                yield from _host_events(line, names, number)


def _host_events(line: bytes, names: dict[int, str], number: int) -> Iterator[_Event]:
    kinds = {}
    for kind, span, _ in _spans(line):
        if kind not in kinds:
            kinds[kind] = _op_of(names[kind])
        if (op := kinds[kind]) is not None:
            yield _Event(span, *op, number, False)


def _op_of(event: str) -> tuple[str, str, str] | None:
    """Return name, type and part of the op that an event of the host is about, or None."""
    if (match := _OP.fullmatch(event)) and match[1] != _REQUEST:
        name, kind = _FUNCTION.sub("", match[1]), match[2]
    elif match := _EAGER_OP.fullmatch(event) or _GET_NEXT.fullmatch(event):
        name = kind = match[1]
    else:
        return None
    if match := _GET_NEXT.fullmatch(kind):
        return kind, kind, "input"
    return name, kind, "collective" if _COLLECTIVE.match(kind) else "compute"


def _gpu_events(
    line: bytes, names: dict[int, str], stats: dict[int, str], number: int
) -> Iterator[_Event]:
    for kind, span, event in _spans(line):
        kernel = op = names[kind]
        for stat in _all(event, 4):  # the op that has started the kernel
            fields = dict(_fields(stat))
            if stats.get(fields.get(1, 0)) == "tf_op":
                op = _text(fields[5]) if 5 in fields else stats.get(fields.get(7, 0), "")
        match = _OP.fullmatch(op)
        name, type_ = (_FUNCTION.sub("", match[1]), match[2]) if match else (kernel, "kernel")
        part = "collective" if _COLLECTIVE.match(kernel) else "compute"
        yield _Event(span, name, type_, part, number, True)


def _spans(line: bytes) -> Iterator[tuple[int, _Span, bytes]]:
    """Yield the kind of each event of a line, its span, and the event."""
    begin = _one(line, 3, 0) * 1000  # nanoseconds since the trace began
    for event in _all(line, 4):
        kind = offset = length = 0
        for number, value in _fields(event):
            if number == 1:
                kind = value
            elif number == 2:
                offset = value
            elif number == 3:
                length = value
        if length:
            yield kind, (begin + offset, begin + offset + length), event


def _names(plane: bytes, number: int) -> dict[int, str]:
    """Return the names in a map of a plane: id → a message whose second field is its name."""
    entries = (dict(_fields(entry)) for entry in _all(plane, number))
    return {entry.get(1, 0): _text(_one(entry[2], 2)) for entry in entries}


def _text(value: Any) -> str:
    return str(value.decode(errors="replace"))


def _one(message: bytes, wanted: int, default: Any = b"") -> Any:
    return next((value for number, value in _fields(message) if number == wanted), default)


def _all(message: bytes, wanted: int) -> Iterator[Any]:
    return (value for number, value in _fields(message) if number == wanted)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a message (protobuf.dev, "Encoding").

    A value is an integer, or the bytes of a string, a message or a number with a fraction.
    """
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        else:
            size = {1: 8, 5: 4}[kind]
        if at + size > end:
            raise ValueError("it is incomplete")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the integer at an offset, and the offset after it."""
    byte = message[at]
    at += 1
    if byte < 128:
        return byte, at
    value = byte & 127
    for shift in range(7, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("an integer has more than 64 bits")
