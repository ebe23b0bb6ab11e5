"""Starts tasks as an agent does: through `boot`, with an events socket and a hand-set TF_CONFIG."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
WORKERS = REPOSITORY / "workers"
BOOT = WORKERS / "tfcluster_workers" / "boot.py"
NEWEST = os.environ.get("TFCLUSTER_TEST_PYTHON_NEWEST", str(REPOSITORY / ".venv/bin/python"))
TF215 = os.environ.get("TFCLUSTER_TEST_PYTHON_TF215", str(REPOSITORY / ".venv-tf215/bin/python"))


@dataclass
class Ended:
    """What is left of a task."""

    code: int
    out: str
    err: str
    events: list[dict[str, Any]] = field(default_factory=list)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    def line(self, start: str) -> str:
        return next(line for line in self.out.splitlines() if line.startswith(start))


class Task:
    """One process behind `boot`, its events read by a thread."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        self.events: list[dict[str, Any]] = []
        with theirs:
            self.process = subprocess.Popen(
                argv,
                env={**env, "TFCLUSTER_EVENTS_FD": str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while message := self._socket.recv(1 << 17):
            self.events.append(json.loads(message))

    def end(self, *, timeout_s: float = 110) -> Ended:
        out, err = self.process.communicate(timeout=timeout_s)
        self._reader.join(5)
        return Ended(self.process.returncode, out, err, self.events)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        self._reader.join(5)
        self._socket.close()


Boot = Callable[..., Ended]
Start = Callable[..., Task]


def clean_environment() -> dict[str, str]:
    dropped = ("TF_CONFIG", "PYTHONPATH")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in dropped and not name.startswith("TFCLUSTER_")
    }
    return {**kept, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(
            *argv: str, python: str = sys.executable, env: Mapping[str, str] | None = None
        ) -> Task:
            whole = clean_environment() | dict(env or {})
            task = Task([python, str(BOOT), *argv], env=whole, cwd=tmp_path)
            stack.callback(task.close)
            return task

        yield begin


@pytest.fixture
def boot(start: Start) -> Boot:
    def run(*argv: str, **options: Any) -> Ended:
        return start(*argv, **options).end()

    return run


@pytest.fixture(scope="session", params=["3.9", "ours"])
def python(request: pytest.FixtureRequest) -> str:
    """The oldest Python a task may have, and the one of the tests."""
    if request.param == "ours":
        return sys.executable
    candidates = [shutil.which("python3.9") or ""]
    candidates += map(str, Path.home().glob(".pyenv/versions/3.9*/bin/python3.9"))
    for candidate in filter(None, candidates):
        # A pyenv shim on PATH exists, but runs only where that version is selected.
        if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    pytest.skip("no Python 3.9 on PATH or in ~/.pyenv")
