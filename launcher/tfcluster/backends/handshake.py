"""From a transport's start to its relay: what is said to each other, how long, and in what words
it is told when it fails.

Progress counts, not time: the bundle may come over a slow line, but a host that says nothing for
ten seconds is named.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tfcluster.agent import bootstrap, container_wait, protocol, relay

SILENCE_S = 10.0
"""So long may nothing come: ssh itself gives up after eight seconds, with its own words."""
EACH_S = 0.25
"""And so much longer for each other host that is dialled now: the clients share our processors."""
_TRACEBACK = "Traceback (most recent call last):"
_OF_PYTHON = (_TRACEBACK, container_wait.TOO_OLD, "Unknown option: -I")
"""Words that only a Python says; the last one Python 2."""
_NOT_TOLD = re.compile(
    r"\s|Traceback \(most recent call last\):$|The above exception was the direct cause"
    r"|During handling of the above exception|$"
)
_QUALIFIED = re.compile(r"^(?:[a-z_]\w*\.)+(?=[A-Z]\w*(?:Error|Exception)\b)")
_SSH_FAILED = 255
_NO_PROGRAM = (126, 127)
"""Exit codes of shells that cannot run what they are told to."""
_EXPLAIN_THEMSELVES = (_SSH_FAILED, relay.NOT_REACHED, *_NO_PROGRAM)
"""Exit codes of programs whose stderr says best why they failed."""

_under_way = 0


@contextmanager
def patience() -> Iterator[float]:
    """How long nothing may come, while one more host is dialled."""
    global _under_way
    _under_way += 1
    try:
        yield SILENCE_S + EACH_S * (_under_way - 1)
    finally:
        _under_way -= 1


async def shake_hands(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    source: str,
    order: Mapping[str, Any],
    bundle: Callable[[], bytes],
) -> None:
    """Send the bootstrap (`source`), its `order`, and the bundle where it is wanted.

    Raises TimeoutError, EOFError, ProtocolError, OSError.
    """
    with patience() as silence_s:
        async with asyncio.timeout(silence_s) as limit:

            def progress() -> None:
                limit.reschedule(asyncio.get_running_loop().time() + silence_s)

            writer.write(f"{source!r}\n{json.dumps(order)}\n".encode())
            with contextlib.suppress(ConnectionError):
                await writer.drain()  # to one who has gone: what it said is read first
            if await _answer(reader, progress) == bootstrap.NEED:
                content = bundle()
                writer.write(b"%d\n" % len(content) + content)
                while await _answer(reader, progress) == bootstrap.GOT:
                    pass


async def _answer(reader: asyncio.StreamReader, progress: Callable[[], None]) -> bytes:
    """One of the bootstrap's answers, after whatever a login prints first."""
    seen = b""
    while True:
        try:
            seen += await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as end:
            raise EOFError(_shown(seen + end.partial)) from None
        except ConnectionError:
            raise EOFError(_shown(seen)) from None
        except asyncio.LimitOverrunError as over:
            seen += await reader.readexactly(over.consumed)
        progress()
        for answer in (bootstrap.HAVE, bootstrap.NEED, bootstrap.GOT):
            if seen.endswith(answer):
                return answer
        if len(seen) > protocol.MAX_NOISE:
            shown = seen[:400].decode(errors="replace")
            raise protocol.ProtocolError(f"no agent answered; instead came: {shown}")


def _shown(seen: bytes) -> str:
    return seen[-400:].decode(errors="replace").strip()


def explain(error: BaseException, code: int | None, said: str, *, logs_in: bool = True) -> str:
    """Why there is no agent. `code`: the transport's exit code, None while it runs; `said`: what
    it, or what ran behind it, wrote to stderr; `logs_in`: a login shell stood between."""
    words = plain(said)
    if words and (code in _EXPLAIN_THEMSELVES or any(one in said for one in _OF_PYTHON)):
        return words
    if isinstance(error, TimeoutError):
        why = f"nothing came from there for {SILENCE_S:.0f} s"
        why += ": does its login hang?" if logs_in else "."
    elif not logs_in:
        return words or str(error) or f"it ended with exit code {code}"
    elif isinstance(error, EOFError | ConnectionResetError) and code is not None:
        why = (
            f"its login ended with exit code {code} before anything of ours ran:"
            " does a .bashrc or .profile end the shell?"
        )
    else:
        return words or str(error) or type(error).__name__
    heard = "\n".join(filter(None, (words, str(error) if isinstance(error, EOFError) else "")))
    return f"{why} It said: {heard}" if heard else why


def plain(said: str) -> str:
    """`said`, with nothing of a Python traceback but the exception."""
    if _TRACEBACK not in said:
        return said
    kept = [line for line in said.splitlines() if not _NOT_TOLD.match(line)]
    return "\n".join(_QUALIFIED.sub("", line) for line in kept)
