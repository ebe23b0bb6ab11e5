"""The coordinator's Unix socket: how `down`, `wait` and `status` reach a live run.

One JSON object a line each way: ``{"op": "stop", "why": "down", "now": false}`` is answered by
``{"ok": true}``; ``{"op": "status"}`` by the state; anything else by ``{"ok": false, "error": …}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfcluster.agent import foreign_json
from tfcluster.agent.error_text import describe_error
from tfcluster.agent.net.private_folders import make_private
from tfcluster.errors import SurroundingsError

if TYPE_CHECKING:
    import asyncio

_LISTEN_AGAIN_S = 1.0
"""`down` asks for longer than that."""

Answer = Callable[[dict[str, Any]], dict[str, Any]]


@contextlib.asynccontextmanager
async def serve(path: Path, answer: Answer) -> AsyncIterator[None]:
    """Answer this user's requests on `path`, in a folder of theirs alone, until the block ends.

    Raises SurroundingsError.
    """
    import asyncio  # a client needs none

    server: asyncio.Server

    async def listen() -> asyncio.Server:
        _clear(path)
        return await asyncio.start_unix_server(partial(_converse, answer), path)

    async def listen_again() -> None:
        """A runtime folder goes with its user's last session, and any other one may be cleared."""
        nonlocal server
        while True:
            await asyncio.sleep(_LISTEN_AGAIN_S)
            if not _is_there(path):
                with contextlib.suppress(OSError):
                    before, server = server, await listen()
                    before.close()

    try:
        server = await listen()
    except OSError as error:
        raise SurroundingsError(
            f"cannot listen on {path}: {describe_error(error)}",
            fix="set XDG_RUNTIME_DIR to a folder of your own with a shorter path",
        ) from error
    listening = asyncio.create_task(listen_again())
    try:
        yield
    finally:
        listening.cancel()
        server.close()
        with contextlib.suppress(OSError):
            _clear(path)


async def _converse(
    answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    from asyncio import CancelledError

    from tfcluster.agent.net.listener import is_own_user

    if not is_own_user(writer.get_extra_info("socket")):
        writer.close()  # the folder keeps others out; this holds where its mode was changed
        return
    # Cancelled: the run is over, and a client that stays is hung up on.
    with contextlib.suppress(ConnectionError, ValueError, CancelledError):
        while line := await reader.readline():
            writer.write(json.dumps(_reply(answer, line), default=dict).encode() + b"\n")
            await writer.drain()
    writer.close()


def _is_there(path: Path) -> bool:
    return os.path.lexists(path)


def _clear(path: Path) -> None:
    make_private(str(path.parent))
    path.unlink(missing_ok=True)


def _reply(answer: Answer, line: bytes) -> dict[str, Any]:
    try:
        return answer(foreign_json.parse_json_object(line))
    except ValueError as error:
        return {"ok": False, "error": str(error)}


def ask(path: Path, request: dict[str, Any], *, timeout: float = 10.0) -> dict[str, Any]:
    """Ask a live coordinator; raises OSError where none listens, ValueError for a torn reply."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as replies:
            return foreign_json.parse_json_object(replies.readline())
