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

from tfcluster.agent.private import make_private
from tfcluster.errors import SurroundingsError

Answer = Callable[[dict[str, Any]], dict[str, Any]]


@contextlib.asynccontextmanager
async def serve(path: Path, answer: Answer) -> AsyncIterator[None]:
    """Answer this user's requests on `path`, in a folder of theirs alone, until the block ends.

    Raises SurroundingsError.
    """
    import asyncio  # a client needs none of these

    from tfcluster.agent.connection import is_own_user

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not is_own_user(writer.get_extra_info("socket")):
            writer.close()  # the folder keeps others out; this holds where its mode was changed
            return
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
            f"cannot listen on {path}: {error}",
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
        request = json.loads(line)
        if not isinstance(request, dict):
            raise ValueError("a request is a JSON object")
        return answer(request)
    except ValueError as error:
        return {"ok": False, "error": str(error)}


def ask(path: Path, request: dict[str, Any], *, timeout: float = 10.0) -> dict[str, Any]:
    """Ask a live coordinator; raises OSError where none listens, ValueError for a torn reply."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as replies:
            reply = json.loads(replies.readline())
    if not isinstance(reply, dict):
        raise ValueError(f"the coordinator answered {reply!r}")
    return reply
