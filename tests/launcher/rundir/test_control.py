"""The control socket answers valid requests of this user, and rejects everything else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import Mock

import pytest

from tfcluster.errors import SetupError, UsageError
from tfcluster.rundir import control
from tfcluster.rundir.paths import RunPaths

_T = TypeVar("_T")


STATE = {"run": "demo"}


def with_server(
    path: Path, ask: Callable[[], _T], stops: list[tuple[str, bool]] | None = None
) -> _T:
    """Return what `ask` returns while a server listens; its stop requests go to `stops`."""
    stops = [] if stops is None else stops

    async def talk() -> _T:
        run = control.ControlledRun(
            lambda why, now: stops.append((why, now)), lambda: STATE, Mock(), Mock(), Mock(), Mock()
        )
        async with control.serve(path, run):
            return await asyncio.to_thread(ask)

    return asyncio.run(talk())


def say(path: Path, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(path))
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_request_is_answered_and_the_socket_is_gone_afterwards(paths: RunPaths) -> None:
    path = paths.control_socket
    assert with_server(path, lambda: control.read_state(path)) == STATE
    assert not path.exists()
    with pytest.raises(OSError, match="No such file"):
        control.read_state(path)


def test_a_stop_has_a_reason_and_may_be_at_once(paths: RunPaths) -> None:
    stops: list[tuple[str, bool]] = []
    path = paths.control_socket
    with_server(path, lambda: control.stop(path, why="down --now", now=True), stops)
    assert stops == [("down --now", True)]


def test_a_request_for_workers_is_answered_or_refused_with_a_fix(paths: RunPaths) -> None:
    def scale_to(workers: int) -> str:
        if workers > 3:
            raise UsageError(f"it cannot have {workers} workers", fix="write a number to 3")
        return f"restarting with {workers} workers"

    async def ask(workers: int) -> str:
        others = (Mock(), Mock(), Mock())
        run = control.ControlledRun(lambda why, now: None, lambda: STATE, scale_to, *others)
        async with control.serve(path, run):
            return await asyncio.to_thread(control.scale_to, path, workers)

    path = paths.control_socket
    assert asyncio.run(ask(2)) == "restarting with 2 workers"
    with pytest.raises(UsageError, match="it cannot have 4 workers\\n  → write a number to 3"):
        asyncio.run(ask(4))


def test_a_request_that_another_version_lacks_is_an_error_with_a_fix(paths: RunPaths) -> None:
    path = paths.control_socket
    with pytest.raises(UsageError, match=r"no request `rewind`\n  → use that version.*restart RUN"):
        with_server(path, lambda: control.request(path, {"op": "rewind"}))


class Session:
    """A command beside a task, whose only output is a word."""

    id = 7

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(4) + b" word")


def test_a_command_beside_a_task_keeps_the_connection(paths: RunPaths) -> None:
    ended: list[tuple[str, Sequence[str]]] = []

    @contextlib.asynccontextmanager
    async def open_exec(
        task: str, argv: Sequence[str], terminal: Mapping[str, Any] | None
    ) -> AsyncIterator[Session]:
        if terminal is not None:
            raise UsageError("no terminal", fix="leave it out")
        yield Session()
        ended.append((task, argv))

    def ask() -> bytes:
        with control.connect(path) as connection:
            request = control.exec_request("worker:1", ["ls"], None)
            assert control.ask_over(connection, request) == 7
            connection.sendall(b"stdin")
            return b"".join(iter(lambda: connection.recv(100), b""))

    async def talk() -> bytes:
        others = (Mock(), Mock(), Mock(), Mock(), Mock())
        async with control.serve(path, control.ControlledRun(*others, open_exec)):
            with pytest.raises(UsageError, match="no terminal"):
                await asyncio.to_thread(
                    control.request, path, control.exec_request("worker:1", [], {})
                )
            return await asyncio.to_thread(ask)

    path = paths.control_socket
    assert asyncio.run(talk()) == b"stdi word"
    assert ended == [("worker:1", ["ls"])]


SAY = """
import os, socket, sys
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as connection:
    connection.settimeout(60)
    connection.connect(sys.argv[1])
    connection.sendall(b'{"op": "status"}\\n')
    os.write(1, connection.recv(1000))
"""


@pytest.mark.linux("SO_PEERCRED")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_disconnected(paths: RunPaths) -> None:
    """The server checks the user even if the modes of folder and socket allow the access."""
    path = paths.control_socket

    def ask_as_another_user() -> bytes:
        path.parent.parent.chmod(0o755)
        path.parent.chmod(0o755)
        path.chmod(0o777)
        argv = [sys.executable, "-I", "-S", "-c", SAY, str(path)]
        return subprocess.run(argv, capture_output=True, check=False).stdout

    assert with_server(path, ask_as_another_user) == b""


@pytest.mark.parametrize("line", [b"{}", b"[]", b"nonsense", b'{"op": "dance"}', b"\xff\xfe"])
def test_invalid_requests_are_answered_with_the_reason(paths: RunPaths, line: bytes) -> None:
    path = paths.control_socket
    assert b'"ok": false' in with_server(path, lambda: say(path, line + b"\n"))


def test_an_endless_line_is_disconnected(
    paths: RunPaths, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_LONGEST_REQUEST", 1 << 16)
    path = paths.control_socket
    assert with_server(path, lambda: say(path, b"x" * 200_000)) == b""
    assert caplog.text == "", "nothing is logged on top of the views"


def test_a_client_that_stays_connected_does_not_block_the_end(
    paths: RunPaths, caplog: pytest.LogCaptureFixture
) -> None:
    path = paths.control_socket
    with socket.socket(socket.AF_UNIX) as client:

        def ask_and_stay() -> bytes:
            client.connect(str(path))
            client.sendall(b'{"op": "status"}\n')
            return client.recv(1000)

        assert b"demo" in with_server(path, ask_and_stay)
    assert caplog.text == ""


def test_the_leftover_socket_of_a_killed_coordinator_is_replaced(paths: RunPaths) -> None:
    path = paths.control_socket
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    assert with_server(path, lambda: control.read_state(path)) == STATE


def test_a_path_that_is_too_long_is_reported_with_the_fix(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 120) / "demo.ctl"
    with pytest.raises(SetupError, match="XDG_RUNTIME_DIR"):
        with_server(path, lambda: None)


def test_a_removed_socket_is_made_again(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """A logout may remove XDG_RUNTIME_DIR while a run continues in the background."""
    monkeypatch.setattr(control, "_CHECK_INTERVAL_S", 0.01)
    path = paths.control_socket

    def clear_and_ask() -> object:
        shutil.rmtree(path.parent)
        deadline = time.monotonic() + 20
        while True:
            try:
                return control.read_state(path)
            except OSError:  # it is made, and only then listened on
                assert time.monotonic() < deadline
                time.sleep(0.01)

    assert with_server(path, clear_and_ask) == STATE
    assert not path.exists()
