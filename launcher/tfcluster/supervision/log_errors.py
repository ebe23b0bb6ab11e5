"""Reads the end of a task's log: its exception, refused arguments, and signs of a lost peer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MISSED_HEARTBEAT = r"heartbeat timeout|stopped sending heartbeats|CoordinationService/Heartbeat"
NEVER_JOINED = r"Clean shutdown is not currently implemented"
_PEER_IS_LOST = re.compile(
    r"Collective ops is aborted by"
    rf"|{MISSED_HEARTBEAT}|{NEVER_JOINED}"
    r"|set to ERROR in coordination service|Coordination agent is set to ERROR"
    r"|cluster check alive failed|Restart your program to reset"
    r"|Terminating process because the \w+ (?:distributed service )?detected"
    r"|Shutdown barrier in coordination service has failed"
    r"|remote process exited or there was a network error"
)
"""tensorflow/core/common_runtime/base_collective_executor.cc, coordination_service.cc (also in
tsl and xla), coordination_service_agent.cc, grpc_server_lib.cc; NCCL's ncclRemoteError."""
_GLOO = re.compile(r"\bgloo/\S+\] .*(?:by peer|Broken pipe|[Tt]imed? ?out|Connection refused)")
"""Errors of Gloo, which JAX and torch use on CPUs (gloo/transport/tcp/pair.cc); torch raises a
RuntimeError with the message."""
_CONNECTION_BROKE = re.compile(
    r"Socket closed|Connection reset by peer|GOAWAY received|failed to connect to all addresses"
)
_RUNTIME_CONNECTION = re.compile(r"grpc_message|StartAbort|UNAVAILABLE:|Additional GRPC error")
_RUNTIME_ERROR = re.compile(
    r"(?:.*\.)?(?:(?:Unavailable|Aborted|Internal|Cancelled|DeadlineExceeded|Unknown"
    r"|FailedPrecondition|InvalidArgument|OutOfRange|NotFound|JaxRuntime|XlaRuntime"
    r"|Dist(?:Backend|Network|Store)?)Error"
    r"|_InactiveRpcError|_MultiThreadedRendezvous)"
)
"""Exceptions of TensorFlow, gRPC, JAX and torch; a user's ValueError may quote anything."""
_ROOT_ERRORS = re.compile(r"^\d+ root error\(s\) found\.$", re.MULTILINE)
_ROOT_ERROR = re.compile(r"^\s*\(\d+\)\s", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last)"
_EXCEPTION_LINE = re.compile(r"^((?=[^:]*[a-z])[A-Za-z_][\w.]*)(?:: (.*))?$")
"""The line ``ValueError: no``, unlike ``WARNING: …`` or ``RPC: …``, which TensorFlow writes."""
_FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+)')
_SYNTAX = re.compile(r"^(?:SyntaxError|IndentationError|TabError)(?:: |$)")
_CHAIN = re.compile(
    r"^(?:The above exception was the direct cause|During handling of the above exception).*$",
    re.MULTILINE,
)
_FOREIGN = re.compile(
    r"/(?:site|dist)-packages/|/lib/python3(?:\.\d+)?/|^<|/tfcluster_workers/(?!jobs/)|^[^/].*\.pyx$"
    r"|/__autograph_generated_file\w*\.py$"
)
"""Files that are not the user's code; the example jobs count as the user's."""
_GRAPH = re.compile(
    r"Graph execution error:\s+(?:Detected at node .*\n"
    r"(?:[ \t]+\S.*(?:\n|\Z)|[ \t]*\n|<stack traces unavailable>(?:\n|\Z)|Node: .*\n)*)+"
    r"(?=\S|\Z)"
)
"""The graph's stack (tensorflow/python/eager/execute.py, framework/error_interpolation.py).

The message below it may be empty: then there is nothing but the stack, or the names of nodes."""
_ROOTS = re.compile(
    r"(?:^|(?<=: ))\d+ root error\(s\) found\.\n\s*\(0\) +(?:[A-Z_]+: +)?"
    r"|\n\d+ successful operations\.(?:\n\d+ derived errors ignored\.)?",
    re.MULTILINE,
)
"""The frame of a message that lists the errors of several operations, of which the first counts."""
_NO_STACK = re.compile(
    r"Graph execution error:\s+(?=Detected at node )"
    r"|Detected at node .*\n(?:<stack traces unavailable>\n)+"
)
_CONVERTED = re.compile(
    r'in user code:\s*\n(?:    File ".*\n(?:     .*\n|[ \t]*\n)*)+    (?:\S+: )?'
)
"""The stack that AutoGraph puts before a message (autograph/pyct/error_utils.py)."""
_GRAPH_NAMES = re.compile(
    r"\{\{function_node \S+\}\} ?| ?\[Op:__inference_\w+\]|(?<=\]) name: ?(?m:$)"
    r"|\n[ \t]{1,8}\[\[\{\{node (?:\w+/)*Collective\w+\}\}\]\]"
)
_PASSED_ON = re.compile(
    r"\n?The error could be from a previous operation\. Restart your program to reset\."
    r"|(?<=Collective ops is aborted by: )(?:Collective ops is aborted by: )+"
)
"""Words that each task adds which passes an error on (base_collective_executor.cc)."""
_DISPATCHED = re.compile(r"(?:Error dispatching computation: )+")
"""The words that JAX adds for each step that waits for the one that failed."""
_LAYER_NAME = re.compile(r"(Exception encountered when calling .{1,200})\.\n\s*")
"""A line of Keras that only names the layer; the next one says what is wrong."""
_LAYER_ARGUMENTS = re.compile(r"\n+(?:Call a|A)rguments received by (?s:.*)")
"""A layer's arguments, which Keras appends to its message (src/utils/traceback_utils.py)."""
_GRPC = re.compile(
    r"\nAdditional GRPC error information from remote target .*\n:?(?:UNKNOWN:[^{\n]*)?\{.*\}"
)
"""The message repeated as JSON (tensorflow/core/distributed_runtime/rpc/grpc_util.h)."""
_REFUSALS: Mapping[int, re.Pattern[str]] = {
    1: re.compile(r"^FATAL Flags parsing error:\n\s*(\S.*)", re.MULTILINE),
    2: re.compile(r"^(?:\S[^:\n]{0,80}: error|Error): (.+)", re.MULTILINE),
}
"""Exit code → the message of absl (1), argparse or click (2) for arguments they reject."""
_CRASH = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
"""The first line that `faulthandler` writes when native code crashes (Python/traceback.c)."""
_STYLE = re.compile(r"\x1b\[[\d;]*m")
_LAST_LINES = 25
"""The number of lines at the end of a log that may say why its task ended."""
_LONGEST_MESSAGE = 200
"""The most lines that a message (a graph's stack) may take after the exception's name.

An exception further from the end of the log was caught and did not end the task."""
_WIDTH = 400
_MAX_LINES = 8


@dataclass(frozen=True, slots=True)
class RaisedError:
    """An uncaught exception; `file` and `line` are the last frame of the user's code."""

    exception: str
    message: str
    file: str | None = None
    line: int | None = None

    @property
    def name(self) -> str:
        """The exception's name, without the module for those of TensorFlow and tfcluster."""
        module, _, name = self.exception.rpartition(".")
        is_internal = module.startswith("tfcluster_workers") or module.endswith("errors_impl")
        return name if is_internal else self.exception


def exception_from_report(error: Mapping[str, Any]) -> RaisedError:
    """Return the exception that a task reported as `error`."""
    return RaisedError(
        exception=str(error.get("exception", "")),
        message=str(error.get("message", "")),
        file=error.get("file"),
        line=error.get("line"),
    )


def parse_exception(log: str) -> RaisedError | None:
    """Return the last exception in the log of a Python that exited with 1, or None."""
    lines = _last_traceback(log)
    heads = ((n, _EXCEPTION_LINE.match(line)) for n, line in enumerate(lines) if n)
    at, head = next(((n, head) for n, head in heads if head is not None), (0, None))
    if head is None or len(lines) - at > _LONGEST_MESSAGE:
        return None
    frames = _frames(lines[:at])
    user_frames = _user_frames(frames)
    # A SyntaxError's last frame is the place where Python stopped reading.
    chosen = frames if _SYNTAX.match(lines[at]) else user_frames
    file, line = chosen[-1] if chosen else (None, None)
    message = "\n".join([head[2] or "", *lines[at + 1 :]]).strip()
    return RaisedError(head[1], message, file, line)


def _frames(lines: Iterable[str]) -> list[tuple[str, int]]:
    """Return file and line of each frame that a traceback's lines name."""
    return [(m[1], int(m[2])) for line in lines if (m := _FRAME.match(line))]


def _user_frames(frames: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return those in the user's own code; all if none is."""
    return [frame for frame in frames if not is_foreign(frame[0])] or frames


def before_crash(log: str) -> str:
    """Return the log without the stacks that `faulthandler` has written at its end."""
    crashes = list(_CRASH.finditer(log))
    return log[: crashes[-1].start()] if crashes else log


def parse_crash(log: str) -> RaisedError | None:
    """Return the crash in native code whose stacks `faulthandler` has written, or None.

    The place is the last line of the user's code in the thread that crashed. A thread without
    Python code, of TensorFlow for example, has no stack: then it is that of the main thread, which
    stands last and waits for the other.
    """
    dump = log[len(before_crash(log)) :]
    if (head := _CRASH.match(dump)) is None:
        return None
    threads = re.split(r"^(?=(?:Thread|Current thread) 0x|Stack \()", dump, flags=re.MULTILINE)[1:]
    crashed = [thread for thread in threads if thread.startswith("Current")] or threads[-1:]
    frames = _frames("".join(crashed).splitlines())
    file, line = next(iter(_user_frames(frames)), (None, None))
    return RaisedError(head[1].lower(), "", file, line)


def _last_traceback(log: str) -> list[str]:
    start = log.rfind(_TRACEBACK)
    if start >= 0:
        return log[start:].splitlines()
    lines = tail(log).splitlines()  # a script that cannot be read has no traceback's first line
    place = next((n for n, line in enumerate(lines) if _FRAME.match(line)), None)
    is_syntax = any(_SYNTAX.match(line) for line in lines)
    return ["", *lines[place:]] if is_syntax and place is not None else []


def tail(log: str) -> str:
    return "\n".join(log.splitlines()[-_LAST_LINES:])


def is_lost_peer_error(raised: RaisedError, traceback: str = "") -> bool:
    """Return whether an exception means that TensorFlow, JAX or torch lost another task.

    This includes an exception of the user's code that was raised while such an exception was
    handled (`traceback` shows both), and a SystemExit with its message.
    """
    if raised.exception == "SystemExit" and has_lost_peer_message(raised.message):
        return True
    return any(
        (
            _RUNTIME_ERROR.fullmatch(error.exception) is not None
            and all(
                _PEER_IS_LOST.search(part) or _CONNECTION_BROKE.search(part)
                for part in _root_errors(error.message)
            )
        )
        or _GLOO.search(error.message) is not None
        for error in [raised, *_handled_exceptions(traceback)]
    )


def _handled_exceptions(traceback: str) -> Iterator[RaisedError]:
    """Yield the exceptions during whose handling the last one was raised, newest first."""
    *earlier, last = _CHAIN.split(traceback)
    while earlier and last.count(_TRACEBACK) == 1:
        last = earlier.pop()
        if (raised := parse_exception(last)) is not None:
            yield raised


def _root_errors(message: str) -> list[str]:
    """Return the parts of a message that lists several root errors, else the whole message."""
    if not _ROOT_ERRORS.search(message):
        return [message]
    return _ROOT_ERROR.split(message)[1:] or [message]


def has_lost_peer_message(log: str) -> bool:
    """Return whether the end of a log without an exception says that another task is gone."""
    last = tail(log)
    broke = any(
        _CONNECTION_BROKE.search(line) and _RUNTIME_CONNECTION.search(line)
        for line in last.splitlines()
    )
    return broke or bool(_PEER_IS_LOST.search(last))


def refused_arguments(log: str, exit_code: int | None) -> str | None:
    """Return the script's message where it ended because it rejects its arguments, else None."""
    pattern = _REFUSALS.get(exit_code or 0)
    messages = pattern.findall(tail(log)) if pattern is not None else []
    return messages[-1] if messages else None


def remove_noise(text: str, *, keeps_stacks: bool = False) -> str:
    """Return a message or the end of a log without what TensorFlow and Keras add to messages.

    `keeps_stacks`: those of graphs stay, which also have lines of the user's code.
    """
    stacks = (_NO_STACK,) if keeps_stacks else (_GRAPH, _CONVERTED)
    for noise in (*stacks, _GRPC, _PASSED_ON, _GRAPH_NAMES, _ROOTS, _DISPATCHED):
        text = noise.sub("", text)
    return _LAYER_NAME.sub(r"\1: ", text)


def is_foreign(file: str) -> bool:
    """Return whether a file of a traceback is not the user's code."""
    return _FOREIGN.search(file) is not None


def code_at(traceback: str, file: str | None, line: int | None) -> str:
    """Return the code of a line as a traceback shows it; an empty string if it does not."""
    frame = rf'^\s+File "{re.escape(file or "")}", line {line}\b.*\n[ \t]+(\S.*)'
    lines = re.findall(frame, traceback, re.MULTILINE)
    return str(lines[-1]) if lines else ""


def shorten(text: str, *, place: str = "") -> str:
    """Return an exception's `text` without the noise, in a few lines, then `place`.

    Noise is what TensorFlow and Keras add: the graph's stack, the names of its functions, a
    layer's arguments. The values of a tensor may be part of a message, so the middle is cut: the
    first and last lines say what is wrong.
    """
    text = _LAYER_ARGUMENTS.sub("", remove_noise(_STYLE.sub("", text)))
    filled = [line for line in f"{text.rstrip()} {place}".splitlines() if line.strip()]
    shown = [line if len(line) <= _WIDTH else f"{line[:_WIDTH]} …" for line in filled]
    if len(shown) > _MAX_LINES:
        shown = [*shown[:2], f"… {len(shown) - 4} lines …", *shown[-2:]]
    return "\n".join(shown).rstrip()
