"""The start of an agent through a transport: the exchange with its bootstrap (`shake_hands`), and
the explanation of a failure (`explain`).

Progress counts, not time: the bundle may take long over a slow line, but a host that sends
nothing for ten seconds is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tfcluster.agent import bootstrap, protocol, relay
from tfcluster.agent.containers import container_wait

SILENCE_S = 10.0
"""Seconds without any byte that end a dial: ssh itself gives up after 8 s, with a message."""
PER_DIAL_S = 0.25
"""Seconds added for each other host dialled at the same time: the clients share our processors."""
_TRACEBACK = "Traceback (most recent call last):"
_PYTHON_MESSAGES = (_TRACEBACK, container_wait.TOO_OLD, "Unknown option: -I")
"""Texts that only a Python prints; the last one is Python 2's."""
_TRACEBACK_LINES = re.compile(
    r"\s|Traceback \(most recent call last\):$|The above exception was the direct cause"
    r"|During handling of the above exception|$"
)
_QUALIFIED = re.compile(r"^(?:[a-z_]\w*\.)+(?=[A-Z]\w*(?:Error|Exception)\b)")
_SSH_FAILED = 255
_NO_PROGRAM = (126, 127)
"""Exit codes of shells that cannot run a program."""
_SELF_EXPLAINING = (_SSH_FAILED, relay.NOT_REACHED, *_NO_PROGRAM)
"""Exit codes of programs whose stderr explains the failure best."""

_dials_in_progress = 0


@contextmanager
def patience() -> Iterator[float]:
    """Count one more dial in progress and yield how many seconds may pass without any byte."""
    global _dials_in_progress
    _dials_in_progress += 1
    try:
        yield SILENCE_S + PER_DIAL_S * (_dials_in_progress - 1)
    finally:
        _dials_in_progress -= 1


async def shake_hands(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    source: str,
    order: Mapping[str, Any],
    bundle: Callable[[], bytes],
) -> None:
    """Send the bootstrap (`source`), its `order`, and the bundle if the node asks for it.

    Raises TimeoutError, EOFError, ProtocolError, OSError.
    """
    with patience() as silence_s:
        async with asyncio.timeout(silence_s) as limit:

            def progress() -> None:
                limit.reschedule(asyncio.get_running_loop().time() + silence_s)

            writer.write(f"{source!r}\n{json.dumps(order, default=vars)}\n".encode())
            with contextlib.suppress(ConnectionError):
                await writer.drain()  # fails if the process has exited; its output is read first
            if await _answer(reader, progress) == bootstrap.NEED:
                content = bundle()
                writer.write(b"%d\n" % len(content) + content)
                while await _answer(reader, progress) == bootstrap.GOT:
                    pass


async def _answer(reader: asyncio.StreamReader, progress: Callable[[], None]) -> bytes:
    """Return the bootstrap's next answer, skipping what a login prints first."""
    received = b""
    while True:
        try:
            received += await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as end:
            raise EOFError(_tail(received + end.partial)) from None
        except ConnectionError:
            raise EOFError(_tail(received)) from None
        except asyncio.LimitOverrunError as over:
            received += await reader.readexactly(over.consumed)
        progress()
        for answer in (bootstrap.HAVE, bootstrap.NEED, bootstrap.GOT):
            if received.endswith(answer):
                return answer
        if len(received) > protocol.MAX_NOISE:
            shown = received[:400].decode(errors="replace")
            raise protocol.ProtocolError(f"no agent answered; the output was: {shown}")


def _tail(received: bytes) -> str:
    return received[-400:].decode(errors="replace").strip()


def explain(error: BaseException, code: int | None, stderr: str, *, logs_in: bool = True) -> str:
    """Return why the agent could not be reached.

    `code`: the transport's exit code, None while it runs. `stderr`: what the transport, or a
    program behind it, wrote to stderr. `logs_in`: the transport goes through a login shell.
    """
    text = shorten_tracebacks(stderr)
    if text and (code in _SELF_EXPLAINING or any(one in stderr for one in _PYTHON_MESSAGES)):
        return text
    if isinstance(error, TimeoutError):
        why = f"no answer for {SILENCE_S:.0f} s"
        why += ": does its login hang?" if logs_in else "."
    elif not logs_in:
        # What a container or a prolog has printed before is no reason.
        if code is None or not isinstance(error, EOFError):
            return text or str(error) or f"exit code {code}"
        printed = f"; its output: {error}" if str(error) else ""
        return text or f"it ended with exit code {code}{printed}"
    elif isinstance(error, EOFError | ConnectionResetError) and code is not None:
        why = (
            f"its login ended with exit code {code} before tfcluster's code ran:"
            " does a .bashrc or .profile end the shell?"
        )
    else:
        return text or str(error) or type(error).__name__
    output = "\n".join(filter(None, (text, str(error) if isinstance(error, EOFError) else "")))
    return f"{why} Its output: {output}" if output else why


def shorten_tracebacks(stderr: str) -> str:
    """Return `stderr` with every Python traceback reduced to its exception."""
    if _TRACEBACK not in stderr:
        return stderr
    kept = [line for line in stderr.splitlines() if not _TRACEBACK_LINES.match(line)]
    return "\n".join(_QUALIFIED.sub("", line) for line in kept)
