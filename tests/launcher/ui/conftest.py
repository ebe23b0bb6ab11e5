"""Fixtures: a run folder made by hand, and a pseudo-terminal."""

from __future__ import annotations

import fcntl
import io
import os
import struct
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest
from tests.launcher.conftest import MakeRun

from tfcluster.plans.plan import TaskId
from tfcluster.rundir.paths import RunPaths

Write = Callable[..., Path]
MakeEnded = Callable[..., RunPaths]
OpenScreen = Callable[..., tuple[int, TextIO]]


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = RunPaths(tmp_path / "runs" / "demo-20260914-153012-k7f3")
    found.logs.mkdir(parents=True)
    return found


@pytest.fixture
def write_log(paths: RunPaths) -> Write:
    """Append bytes to a task's log."""

    def write(task: str, content: bytes, *, attempt: int = 1) -> Path:
        path = paths.task_log(TaskId.parse(task), attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(content)
        return path

    return write


@pytest.fixture
def open_screen() -> Iterator[OpenScreen]:
    """Open a pseudo-terminal; return the user's end (a descriptor) and the programs' end."""
    opened: list[tuple[int, TextIO]] = []

    def open_pty(columns: int = 80, rows: int = 24) -> tuple[int, TextIO]:
        user, program = os.openpty()
        fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        stream = io.TextIOWrapper(os.fdopen(program, "wb", buffering=0), write_through=True)
        opened.append((user, stream))
        return user, stream

    yield open_pty
    for user, stream in opened:
        # The user's end first: a writer that still waits then gets an error instead of hanging.
        os.close(user)
        stream.close()


@pytest.fixture
def make_ended(make_run: MakeRun) -> MakeEnded:
    """Return a function that makes a run with logs of two tasks; `more` is for `make_run`."""

    def make(name: str = "old", **more: Any) -> RunPaths:
        made = make_run(name, **more)
        made.attempt_logs(1).mkdir(parents=True)
        (made.attempt_logs(1) / "worker-0.log").write_bytes(b"epoch 1\nloss 0.5\nno end")
        (made.attempt_logs(1) / "worker-1.log").write_bytes(b"epoch 1\nloss 0.7\n")
        return made

    return make
