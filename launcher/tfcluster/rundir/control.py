"""The coordinator's control socket, by which `down`, `wait`, `scale-to` reach a live run.

Requests and replies are JSON objects, one a line:

=============================================  ====================================================
``{"op": "stop", "why": "down", "now": false}``  ``{"ok": true}``
``{"op": "status"}``                             the state
``{"op": "scale_to", "workers": 2}``             a sentence about it
``{"op": "stacks", "tasks": []}``                the stacks of these tasks, or of all
``{"op": "profile", "tasks": [], "steps": 10}``  the id of the profile, which events tell more of
``{"op": "exec", "task": …, "argv": […],``       the id of the command; the connection then has
`` "terminal": null}``                           its frames (`rundir.exec_stream`)
anything else                                    ``{"ok": false, "error": …}``
=============================================  ====================================================
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tfcluster.agent import foreign_json
from tfcluster.agent.error_text import describe_error
from tfcluster.agent.net.private_folders import make_private
from tfcluster.errors import SetupError, UsageError
from tfcluster.rundir.forked_children import keep_from_children

if TYPE_CHECKING:
    import asyncio

    Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_CHECK_INTERVAL_S = 1.0
"""The interval of checks of the socket; `down` keeps asking for longer than that."""

_LONGEST_REQUEST = 4 << 20
"""Bytes of a request: the command of `exec` may be as long as a system lets it be."""
_LONG_S = 60.0
"""Time for an answer that needs an agent, and for a coordinator in a cluster a job step or a
`kubectl exec` before: on a loaded machine these take tens of seconds to start."""
_CONNECT_S = 10.0
_CHUNK = 1 << 18


class ExecSession(Protocol):
    """A command beside a task, which has been started."""

    id: int

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass its frames on until it has ended or the connection is closed."""


OpenExec = Callable[
    [str, Sequence[str], Mapping[str, Any] | None], AbstractAsyncContextManager[ExecSession]
]


@dataclass(frozen=True, slots=True)
class ControlledRun:
    """The functions of a run that answer requests; the last four raise UsageError."""

    stop: Callable[[str, bool], object]
    """Ends the run; gets the reason, and whether to kill the tasks at once."""
    get_state: Callable[[], object]
    scale_to: Callable[[int], str]
    """Gives the gang this number of workers; returns a sentence about it."""
    get_stacks: Callable[[Sequence[str]], Awaitable[dict[str, Any]]]
    """Returns the stacks of these tasks, or of all."""
    profile: Callable[[Sequence[str], int], str]
    """Has these tasks, or all, trace a number of steps; returns the id of the profile."""
    open_exec: OpenExec
    """Starts a command beside a task, with a terminal or without; the block's end ends it."""


@contextlib.asynccontextmanager
async def serve(path: Path, run: ControlledRun) -> AsyncIterator[None]:
    """Answer this user's requests on `path` until the block ends; raises SetupError."""
    import asyncio  # clients do not need it: a fast start

    server: asyncio.Server
    answer = partial(_serve_client, run)

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
        return await asyncio.start_unix_server(answer, sock=listener, limit=_LONGEST_REQUEST)
    except OSError:
        listener.close()
        raise


async def _serve_client(
    run: ControlledRun, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    from asyncio import CancelledError

    from tfcluster.agent.net.listener import is_own_user

    if not is_own_user(writer.get_extra_info("socket")):
        writer.close()  # a second defence, in case the mode of the private folder was changed
        return
    # CancelledError: the run is over, and the remaining clients are disconnected.
    with (
        contextlib.closing(writer),
        contextlib.suppress(ConnectionError, ValueError, CancelledError),
    ):
        while line := await reader.readline():
            async with contextlib.AsyncExitStack() as opened:
                sessions: list[ExecSession] = []
                reply = await _reply(line, run, opened, sessions)
                writer.write(json.dumps(reply, default=dict).encode() + b"\n")
                await writer.drain()
                for session in sessions:  # one at most; what follows are its frames
                    await session.join(reader, writer)
                    return


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def _clear(path: Path) -> None:
    make_private(str(path.parent))
    path.unlink(missing_ok=True)


async def _reply(
    line: bytes, run: ControlledRun, opened: contextlib.AsyncExitStack, sessions: list[ExecSession]
) -> dict[str, object]:
    """Return the reply to a request; a command that it starts comes into `sessions`."""
    try:
        match foreign_json.parse_json_object(line):
            case {"op": "stop", **more}:
                run.stop(str(more.get("why")), bool(more.get("now")))
                return {"ok": True}
            case {"op": "status"}:
                return {"ok": True, "state": run.get_state()}
            case {"op": "scale_to", "workers": int(workers)}:
                return {"ok": True, "answer": run.scale_to(workers)}
            case {"op": "stacks", "tasks": list(tasks)}:
                return {"ok": True, "answer": await run.get_stacks(list(map(str, tasks)))}
            case {"op": "profile", "tasks": list(tasks), "steps": int(steps)}:
                return {"ok": True, "answer": run.profile(list(map(str, tasks)), steps)}
            case {"op": "exec", "task": str(task), "argv": list(argv), **more}:
                session = run.open_exec(task, list(map(str, argv)), more.get("terminal"))
                sessions.append(await opened.enter_async_context(session))
                return {"ok": True, "answer": sessions[0].id}
            case other:
                return {"ok": False, "error": f"unknown op {other.get('op')!r}"}
    except UsageError as error:
        return {"ok": False, "error": error.message, "fix": error.fix}
    except ValueError as error:
        return {"ok": False, "error": str(error), "fix": ""}


def stop(path: Path, *, why: str, now: bool) -> bool:
    """Have the coordinator on `path` end its run; return True. Raises what `read_state` raises."""
    ask(path, {"op": "stop", "why": why, "now": now}, 10.0)
    return True


def read_state(path: Path, *, timeout_s: float = 10.0) -> object:
    """Return the state of the coordinator on `path`.

    Raises OSError if none listens, ValueError for an incomplete reply.
    """
    return ask(path, {"op": "status"}, timeout_s).get("state")


def scale_to(path: Path, workers: int) -> str:
    """Have the coordinator on `path` give its gang this number of workers; return its answer.

    Raises UsageError if it refuses, and what `read_state` raises.
    """
    request = {"op": "scale_to", "workers": workers}
    return str(_answer_of(request, ask(path, request, 10.0)))


def stacks_request(tasks: Sequence[str]) -> dict[str, object]:
    return {"op": "stacks", "tasks": list(tasks)}


def profile_request(tasks: Sequence[str], steps: int) -> dict[str, object]:
    return {"op": "profile", "tasks": list(tasks), "steps": steps}


def exec_request(
    task: str, argv: Sequence[str], terminal: Mapping[str, object] | None
) -> dict[str, object]:
    return {"op": "exec", "task": task, "argv": list(argv), "terminal": terminal}


def request(path: Path, request: Mapping[str, object]) -> Any:
    """Return the answer of the coordinator on `path` to a request that may take a while.

    Raises UsageError if it refuses, and what `read_state` raises.
    """
    with connect(path) as connection:
        return ask_over(connection, request)


def _answer_of(request: Mapping[str, object], reply: Mapping[str, Any]) -> Any:
    """Return the answer in a reply; raises UsageError if the coordinator has refused."""
    if reply.get("ok"):
        return reply.get("answer")
    if "fix" not in reply:  # it does not know the request
        raise UsageError(
            f"the version of tfcluster that started this run has no request `{request['op']}`",
            fix="use that version (event `run_started`), or `tfcluster restart RUN` to change it",
        )
    raise UsageError(str(reply.get("error")), fix=str(reply["fix"] or ""))


def ask(path: Path, request: Mapping[str, object], timeout_s: float) -> dict[str, Any]:
    """Return the reply to a request; raises what `read_state` raises."""
    with connect(path) as connection:
        return _send(connection, request, timeout_s)


def connect(path: Path) -> socket.socket:
    """Return a connection to the coordinator on `path`; raises OSError if none listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_CONNECT_S)
        connection.connect(str(path))
    except BaseException:
        connection.close()
        raise
    return connection


def ask_over(connection: socket.socket, request: Mapping[str, object]) -> Any:
    """Return the answer to a request that may take a while; what follows it is not read.

    Raises UsageError if the coordinator refuses, and what `read_state` raises.
    """
    return _answer_of(request, _send(connection, request, _LONG_S))


def _send(
    connection: socket.socket, request: Mapping[str, object], timeout_s: float
) -> dict[str, Any]:
    connection.settimeout(timeout_s)
    connection.sendall(json.dumps(request).encode() + b"\n")
    reply = bytearray()
    while not reply.endswith(b"\n") and (ahead := connection.recv(_CHUNK, socket.MSG_PEEK)):
        reply += connection.recv(ahead.find(b"\n") + 1 or len(ahead))
    return foreign_json.parse_json_object(bytes(reply))
