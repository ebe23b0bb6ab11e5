"""Starts tasks as an agent does: through `boot`, with an event socket and a given TF_CONFIG."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest
from tests.integration.live import free_ports

from tfcluster_workers import event_channel

REPOSITORY = Path(__file__).parents[2]
WORKERS = REPOSITORY / "workers"
BOOT = WORKERS / "tfcluster_workers" / "boot.py"
PYTHONS = {
    "newest": os.environ.get("TFCLUSTER_TEST_PYTHON_NEWEST", str(REPOSITORY / ".venv/bin/python")),
    "tf215": os.environ.get(
        "TFCLUSTER_TEST_PYTHON_TF215", str(REPOSITORY / ".venv-tf215/bin/python")
    ),
}
"""The Pythons with TensorFlow, by their names in the tests."""


@dataclass
class Ended:
    """The result of a task."""

    code: int
    out: str
    err: str
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return self.out + self.err

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]


class Task:
    """A task process started through `boot`; its output goes to files, its events to a thread."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, event_channel.KIND)
        self._socket = ours
        self._out, self._err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115
        self.events: list[dict[str, Any]] = []
        with theirs:
            self.process = subprocess.Popen(
                argv,
                env={**env, "TFCLUSTER_EVENTS_FD": str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._err,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with suppress(ConnectionResetError):  # macOS
            while message := self._socket.recv(1 << 17):
                self.events.append(json.loads(message))

    def end(self, *, timeout_s: float = 380) -> Ended:
        """Wait for the end of the task; a test's own time limit may be shorter."""
        code = self.process.wait(timeout_s)
        if event_channel.KIND == socket.SOCK_DGRAM:  # it has no end of file
            self._socket.shutdown(socket.SHUT_RD)
        self._reader.join(5)
        return Ended(code, content(self._out), content(self._err), self.events)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(5)
        for opened in (self._socket, self._out, self._err):
            opened.close()


def content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


Boot = Callable[..., Ended]
Start = Callable[..., Task]
Gang = Callable[..., dict[str, Ended]]


def clean_environment() -> dict[str, str]:
    dropped = ("TF_CONFIG", "PYTHONPATH")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in dropped and not name.startswith("TFCLUSTER_")
    }
    return {**kept, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}


def run_plain(
    python: str, *argv: str, cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a Python that can import the package, without `boot`."""
    whole = clean_environment() | {"PYTHONPATH": str(WORKERS)} | env
    return subprocess.run(
        [python, *argv], env=whole, cwd=cwd, capture_output=True, text=True, timeout=380
    )


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
    """Return the oldest Python that tasks support, then the Python of the tests."""
    if request.param == "ours":
        return sys.executable
    candidates = [shutil.which("python3.9") or ""]
    candidates += map(str, Path.home().glob(".pyenv/versions/3.9*/bin/python3.9"))
    for candidate in filter(None, candidates):
        # A pyenv shim on PATH may exist and fail: it runs only if that version is selected.
        if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    pytest.skip("no Python 3.9 on PATH or in ~/.pyenv")


def tf_configs(tasks: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return each task's TF_CONFIG as the launcher makes it; only its own names an evaluator."""
    ports = dict(zip(tasks, free_ports(len(tasks)), strict=True))
    configs = {}
    for task in tasks:
        cluster: dict[str, list[str]] = {}
        for other, port in ports.items():
            job = other.partition(":")[0]
            if job != "evaluator" or other == task:
                cluster.setdefault(job, []).append(f"127.0.0.1:{port}")
        job, _, index = task.partition(":")
        config = {"cluster": cluster, "task": {"type": job, "index": int(index)}}
        configs[task] = {"TF_CONFIG": json.dumps(config)}
    return configs


def run_gang(
    python: str,
    tasks: Sequence[str],
    target: Sequence[str],
    *,
    cwd: Path,
    env: Callable[[str], dict[str, str]],
) -> dict[str, Ended]:
    """Start all tasks through boot, wait for their ends, and return their results."""
    with ExitStack() as stack:
        started = {}
        for task, own in tf_configs(tasks).items():
            whole = clean_environment() | own | env(task)
            started[task] = Task([python, str(BOOT), *target], env=whole, cwd=cwd)
            stack.callback(started[task].close)
        return {name: task.end() for name, task in started.items()}


@pytest.fixture(scope="session")
def gang() -> Gang:
    """Return a function that runs several tasks: `gang(python, tasks, target, cwd=…, env=…)`."""
    return run_gang
