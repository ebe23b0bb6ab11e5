"""The coordinator's Unix socket: how `down`, `wait` and `status` reach a live run.

One JSON object a line each way: ``{"op": "stop", "why": "down", "now": false}`` is answered by
``{"ok": true}``; ``{"op": "status"}`` by the state; anything else by ``{"ok": false, "error": …}``.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from tfcluster.agent import foreign_json
from tfcluster.agent.error_words import words_of
from tfcluster.agent.private import make_private
from tfcluster.errors import SurroundingsError

Answer = Callable[[dict[str, Any]], dict[str, Any]]


@contextlib.asynccontextmanager
async def serve(path: Path, answer: Answer) -> AsyncIterator[None]:
    """Answer requests on `path`, in a folder of this user's alone, until the block ends.

    Raises SurroundingsError.
    """
    import asyncio  # who only asks needs none

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Cancelled: the run is over, and a client that stays is hung up on.
        with contextlib.suppress(ConnectionError, ValueError, asyncio.CancelledError):
            while line := await reader.readline():
                writer.write(json.dumps(_reply(answer, line), default=dict).encode() + b"\n")
                await writer.drain()
        writer.close()

    _clear(path)
    try:
        server = await asyncio.start_unix_server(converse, path)
    except OSError as error:
        raise SurroundingsError(
            f"cannot listen on {path}: {words_of(error)}",
            cure="set XDG_RUNTIME_DIR to a folder of your own with a shorter path",
        ) from error
    try:
        yield
    finally:
        server.close()
        _clear(path)


def _clear(path: Path) -> None:
    make_private(str(path.parent))
    path.unlink(missing_ok=True)


def _reply(answer: Answer, line: bytes) -> dict[str, Any]:
    try:
        return answer(foreign_json.parse_object(line))
    except ValueError as error:
        return {"ok": False, "error": str(error)}


def ask(path: Path, request: dict[str, Any], *, timeout: float = 10.0) -> dict[str, Any]:
    """Ask a live coordinator; raises OSError where none listens, ValueError for a torn reply."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as replies:
            return foreign_json.parse_object(replies.readline())
