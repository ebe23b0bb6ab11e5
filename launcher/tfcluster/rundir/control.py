"""The coordinator's control socket, by which `down`, `wait` and `status` reach a live run.

Requests and replies are JSON objects, one a line: ``{"op": "stop", "why": "down", "now": false}``
is answered by ``{"ok": true}``, ``{"op": "status"}`` by the state, and anything else by
``{"ok": false, "error": …}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfcluster.agent import foreign_json
from tfcluster.agent.error_text import describe_error
from tfcluster.agent.net.private_folders import make_private
from tfcluster.errors import SetupError
from tfcluster.rundir.forked_children import keep_from_children

if TYPE_CHECKING:
    import asyncio

    Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_CHECK_INTERVAL_S = 1.0
"""The interval of checks of the socket; `down` keeps asking for longer than that."""

Stop = Callable[[str, bool], None]
"""A function that ends the run; it gets the reason, and whether to kill the tasks at once."""
GetState = Callable[[], object]


@contextlib.asynccontextmanager
async def serve(path: Path, stop: Stop, get_state: GetState) -> AsyncIterator[None]:
    """Answer this user's requests on `path`, in a private folder, until the block ends.

    Raises SetupError if it cannot listen there.
    """
    import asyncio  # clients do not need it: a fast start

    server: asyncio.Server
    answer = partial(_serve_client, stop, get_state)

    async def keep_listening() -> None:
        """Listen again when the socket is removed, for example with the user's last session."""
        nonlocal server
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            if not _exists(path):
                with contextlib.suppress(OSError):
                    before, server = server, await _listen(path, answer)
                    before.close()

    try:
        server = await _listen(path, answer)
    except OSError as error:
        raise SetupError(
            f"cannot listen on {path}: {describe_error(error)}",
            fix="set XDG_RUNTIME_DIR to a private folder with a shorter path",
        ) from error
    listening = asyncio.create_task(keep_listening())
    try:
        yield
    finally:
        listening.cancel()
        server.close()
        with contextlib.suppress(OSError):
            _clear(path)


async def _listen(path: Path, answer: Answer) -> asyncio.Server:
    import asyncio

    _clear(path)
    listener = keep_from_children(socket.socket(socket.AF_UNIX))
    try:
        listener.bind(str(path))
        return await asyncio.start_unix_server(answer, sock=listener)
    except OSError:
        listener.close()
        raise


async def _serve_client(
    stop: Stop, get_state: GetState, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    from asyncio import CancelledError

    from tfcluster.agent.net.listener import is_own_user

    if not is_own_user(writer.get_extra_info("socket")):
        writer.close()  # a second defence, in case the mode of the private folder was changed
        return
    # CancelledError: the run is over, and the remaining clients are disconnected.
    with contextlib.suppress(ConnectionError, ValueError, CancelledError):
        while line := await reader.readline():
            reply = _reply(line, stop, get_state)
            writer.write(json.dumps(reply, default=dict).encode() + b"\n")
            await writer.drain()
    writer.close()


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def _clear(path: Path) -> None:
    make_private(str(path.parent))
    path.unlink(missing_ok=True)


def _reply(line: bytes, stop: Stop, get_state: GetState) -> dict[str, object]:
    try:
        match foreign_json.parse_json_object(line):
            case {"op": "stop", **more}:
                stop(str(more.get("why")), bool(more.get("now")))
                return {"ok": True}
            case {"op": "status"}:
                return {"ok": True, "state": get_state()}
            case other:
                raise ValueError(f"unknown op {other.get('op')!r}")
    except ValueError as error:
        return {"ok": False, "error": str(error)}


def stop(path: Path, *, why: str, now: bool) -> None:
    """Have the coordinator on `path` end its run; raises what `read_state` raises."""
    _ask(path, {"op": "stop", "why": why, "now": now}, 10.0)


def read_state(path: Path, *, timeout_s: float = 10.0) -> object:
    """Return the state of the coordinator on `path`.

    Raises OSError if none listens, ValueError for an incomplete reply.
    """
    return _ask(path, {"op": "status"}, timeout_s).get("state")


def _ask(path: Path, request: dict[str, object], timeout_s: float) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as replies:
            return foreign_json.parse_json_object(replies.readline())
