"""What a task said at its end: its exception, and whether it blames another task."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_PEER_IS_LOST = re.compile(
    r"Collective ops is aborted by"
    r"|heartbeat timeout|stopped sending heartbeats|CoordinationService/Heartbeat"
    r"|set to ERROR in coordination service|Coordination agent is set to ERROR"
    r"|cluster check alive failed|Restart your program to reset"
    r"|Clean shutdown is not currently implemented"
    r"|Terminating process because the \w+ (?:distributed service )?detected"
)
"""tensorflow/core/common_runtime/base_collective_executor.cc, coordination_service.cc (also in
tsl and xla), coordination_service_agent.cc, grpc_server_lib.cc."""
_CONNECTION_BROKE = re.compile(
    r"Socket closed|Connection reset by peer|GOAWAY received|failed to connect to all addresses"
)
_OF_THE_RUNTIME = re.compile(r"grpc_message|StartAbort|UNAVAILABLE:|Additional GRPC error")
_RUNTIME_ERROR = re.compile(
    r"(?:.*\.)?(?:(?:Unavailable|Aborted|Internal|Cancelled|DeadlineExceeded|Unknown"
    r"|FailedPrecondition|InvalidArgument|OutOfRange|NotFound)Error"
    r"|_InactiveRpcError|_MultiThreadedRendezvous)"
)
"""TensorFlow's and gRPC's own exceptions; a user's ValueError may quote anything."""
_ROOT_ERRORS = re.compile(r"^\d+ root error\(s\) found\.$", re.MULTILINE)
_ROOT_ERROR = re.compile(r"^\s*\(\d+\)\s", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last)"
_HEAD = re.compile(r"^((?=[^:]*[a-z])[A-Za-z_][\w.]*)(?:: (.*))?$")
"""``ValueError: no``; unlike ``WARNING: …`` and ``RPC: …``, which TensorFlow writes among them."""
_FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+)')
_SYNTAX = re.compile(r"^(?:SyntaxError|IndentationError|TabError)(?:: |$)")
_CHAIN = re.compile(
    r"^(?:The above exception was the direct cause|During handling of the above exception).*$",
    re.MULTILINE,
)
_FOREIGN = re.compile(
    r"/(?:site|dist)-packages/|/lib/python3(?:\.\d+)?/|^<|/tfcluster_workers/(?!jobs/)|^[^/].*\.pyx$"
)
"""What is not the user's own code; the example jobs stand for it."""
_GRAPH = re.compile(
    r"Graph execution error:\s+(?:Detected at node .*\n(?:[ \t]+\S.*\n|[ \t]*\n)*)+(?=\S)"
)
"""tensorflow/python/eager/execute.py and framework/error_interpolation.py."""
_NODE = re.compile(r"\{\{function_node \S+\}\} ?| ?\[Op:__inference_\w+\]")
_CALL = re.compile(r"\n+(?:Call a|A)rguments received by (?s:.*)")
"""What a layer was called with, at the end of what Keras says (src/utils/traceback_utils.py)."""
_GRPC = re.compile(r"\nAdditional GRPC error information from remote target .*\n:?\{.*\}")
"""The message once more, as JSON (tensorflow/core/distributed_runtime/rpc/grpc_util.h)."""
_REFUSALS: Mapping[int, re.Pattern[str]] = {
    1: re.compile(r"^FATAL Flags parsing error:\n\s*(\S.*)", re.MULTILINE),
    2: re.compile(r"^(?:\S[^:\n]{0,80}: error|Error): (.+)", re.MULTILINE),
}
"""Exit code → what absl, or argparse and click, say of arguments that they refuse."""
_STYLE = re.compile(r"\x1b\[[\d;]*m")
_TAIL = 25
"""Lines at the end of a log that may tell why its task ended."""
_AFTER = 200
"""Lines that a message (a graph's stack) may take after the exception's name; what is further from
the end of the log was caught and did not end the task."""
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
        """Short for TensorFlow's and our own, whose modules say nothing."""
        module, _, name = self.exception.rpartition(".")
        is_ours = module.startswith("tfcluster_workers")
        return name if is_ours or module.endswith("errors_impl") else self.exception


def reported(error: Mapping[str, Any]) -> Raised:
    """`error` as the task's own report has it."""
    return Raised(
        exception=str(error.get("exception", "")),
        message=str(error.get("message", "")),
        file=error.get("file"),
        line=error.get("line"),
    )


def read(log: str) -> Raised | None:
    """The exception that a Python which ended with 1 wrote last; None where there is none."""
    lines = _last_traceback(log)
    at = next((n for n, line in enumerate(lines) if n and _HEAD.match(line)), None)
    if at is None or (head := _HEAD.match(lines[at])) is None or len(lines) - at > _AFTER:
        return None
    frames = [(m[1], int(m[2])) for line in lines[:at] if (m := _FRAME.match(line))]
    own = [frame for frame in frames if not _FOREIGN.search(frame[0])] or frames
    # A SyntaxError's last frame is the place where Python stopped reading.
    chosen = frames if _SYNTAX.match(lines[at]) else own
    file, line = chosen[-1] if chosen else (None, None)
    message = "\n".join([head[2] or "", *lines[at + 1 :]]).strip()
    return Raised(head[1], message, file, line)


def _last_traceback(log: str) -> list[str]:
    start = log.rfind(_TRACEBACK)
    if start >= 0:
        return log[start:].splitlines()
    lines = log.splitlines()[-_TAIL:]  # a script that cannot be read has no traceback's first line
    place = next((n for n, line in enumerate(lines) if _FRAME.match(line)), None)
    is_syntax = any(_SYNTAX.match(line) for line in lines)
    return ["", *lines[place:]] if is_syntax and place is not None else []


def tail(log: str) -> str:
    return "\n".join(log.splitlines()[-_TAIL:])


def blames_a_peer(raised: Raised, traceback: str = "") -> bool:
    """Whether an exception is TensorFlow's way to say that another task is gone.

    Also when the user's code answers such a one with its own, which `traceback` then shows, or
    exits with what it said.
    """
    if raised.exception == "SystemExit" and tells_of_a_lost_peer(raised.message):
        return True
    return any(
        _RUNTIME_ERROR.fullmatch(one.exception) is not None
        and all(_tells_of_a_broken_peer(part) for part in _root_errors(one.message))
        for one in [raised, *_answered(traceback)]
    )


def _answered(traceback: str) -> Iterator[Raised]:
    """The exceptions that the last one of a text was raised in answer to, newest first."""
    *earlier, last = _CHAIN.split(traceback)
    while earlier and last.count(_TRACEBACK) == 1:
        last = earlier.pop()
        if (raised := read(last)) is not None:
            yield raised


def _root_errors(message: str) -> list[str]:
    """The parts of a message that lists several causes; itself where it has one."""
    if not _ROOT_ERRORS.search(message):
        return [message]
    return _ROOT_ERROR.split(message)[1:] or [message]


def _tells_of_a_broken_peer(said: str) -> bool:
    return bool(_PEER_IS_LOST.search(said) or _CONNECTION_BROKE.search(said))


def tells_of_a_lost_peer(log: str) -> bool:
    """Whether the last lines of a log without an exception say that another task is gone."""
    last = tail(log)
    broke = any(
        _CONNECTION_BROKE.search(line) and _OF_THE_RUNTIME.search(line)
        for line in last.splitlines()
    )
    return broke or bool(_PEER_IS_LOST.search(last))


def refused_arguments(log: str, exit_code: int | None) -> str | None:
    """What the script said of its arguments where it ended because of them; else None."""
    pattern = _REFUSALS.get(exit_code or 0)
    found = pattern.findall(tail(log)) if pattern is not None else []
    return found[-1] if found else None


def brief(text: str, *, place: str = "", lines: int = 8) -> str:
    """`text` without what TensorFlow and Keras add: where a graph was made, the names of its
    functions, what a layer was called with. `place` is appended.

    A tensor's values may be part of a message; its first and last lines say what is wrong.
    """
    for noise in (_STYLE, _GRAPH, _NODE, _GRPC, _CALL):
        text = noise.sub("", text)
    said = [line for line in f"{text.rstrip()} {place}".splitlines() if line.strip()]
    found = [line if len(line) <= _WIDTH else f"{line[:_WIDTH]} …" for line in said]
    if len(found) > lines:
        found = [*found[:2], f"… {len(found) - 4} lines …", *found[-2:]]
    return "\n".join(found).rstrip()
