"""What a task said at its end: its exception, and whether it blames another task."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_PEER_IS_LOST = re.compile(
    r"Collective ops is aborted by"
    r"|heartbeat timeout|stopped sending heartbeats"
    r"|set to ERROR in coordination service"
    r"|Coordination agent is set to ERROR"
    r"|cluster check alive failed"
    r"|Restart your program to reset"
    r"|Socket closed|Connection reset by peer|GOAWAY received"
)
_RUNTIME_ERROR = re.compile(
    r"(?:.*\.)?(?:(?:Unavailable|Aborted|Internal|Cancelled|DeadlineExceeded|Unknown"
    r"|FailedPrecondition|InvalidArgument|OutOfRange|NotFound)Error|_InactiveRpcError"
    r"|_MultiThreadedRendezvous)"
)
"""TensorFlow's and gRPC's own exceptions; a user's ValueError may quote anything."""
_TRACEBACK = "Traceback (most recent call last)"
_HEAD = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$")
_FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+)')
_FOREIGN = re.compile(r"/(?:site|dist)-packages/|/lib/python3(?:\.\d+)?/|^<")
_TAIL = 25
"""Lines at the end of a log that may tell why its task ended."""
_WIDTH = 400


@dataclass(frozen=True, slots=True)
class Raised:
    """An uncaught exception; `file` and `line` are the last frame of the user's own code."""

    exception: str
    message: str
    file: str | None = None
    line: int | None = None

    @property
    def name(self) -> str:
        """Short for TensorFlow's own, whose module says nothing."""
        module, _, name = self.exception.rpartition(".")
        return name if module.endswith("errors_impl") else self.exception


def reported(error: Mapping[str, Any]) -> Raised:
    """`error` as the task's own report has it."""
    return Raised(
        exception=str(error.get("exception", "")),
        message=str(error.get("message", "")),
        file=error.get("file"),
        line=error.get("line"),
    )


def read(log: str) -> Raised | None:
    """The exception whose traceback a log ends with; None where there is none."""
    lines = _last_traceback(log)
    at = next((n for n, line in enumerate(lines) if n and _HEAD.match(line)), None)
    if at is None or (head := _HEAD.match(lines[at])) is None:
        return None
    frames = [(m[1], int(m[2])) for line in lines[:at] if (m := _FRAME.match(line))]
    own = [frame for frame in frames if not _FOREIGN.search(frame[0])] or frames
    file, line = own[-1] if own else (None, None)
    message = "\n".join([head[2] or "", *lines[at + 1 :]]).strip()
    return Raised(head[1], message, file, line)


def _last_traceback(log: str) -> list[str]:
    start = log.rfind(_TRACEBACK)
    return log[start:].splitlines() if start >= 0 else []


def end_of(log: str) -> str:
    """The exception a log ends with, else its last lines."""
    raised = read(log)
    if raised is not None:
        return f"{raised.exception}: {raised.message}"
    return "\n".join(log.splitlines()[-_TAIL:])


def blames_a_peer(error: Mapping[str, Any]) -> bool:
    """Whether a reported exception is TensorFlow's way to say that another task is gone."""
    raised = reported(error)
    return bool(_RUNTIME_ERROR.fullmatch(raised.exception) and _PEER_IS_LOST.search(raised.message))


def tells_of_a_lost_peer(log: str) -> bool:
    """Whether a log ends with such words."""
    return bool(_PEER_IS_LOST.search(end_of(log)))


def brief(text: str, *, lines: int = 8) -> str:
    """A tensor's values may be part of a message; its first and last lines say what is wrong."""
    found = [line if len(line) <= _WIDTH else f"{line[:_WIDTH]} …" for line in text.splitlines()]
    if len(found) > lines:
        found = [*found[:2], f"… {len(found) - 4} lines …", *found[-2:]]
    return "\n".join(found)
