"""Starts tasks as an agent does: through `boot`, with an event socket and a given TF_CONFIG."""

from __future__ import annotations

import json
import os
import re
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

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    def line(self, start: str) -> str:
        return next(line for line in self.out.splitlines() if line.startswith(start))


class Task:
    """A task process started through `boot`; a thread reads its events."""

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


@dataclass
class Member:
    process: subprocess.Popen[str]
    events: socket.socket


@dataclass
class Finished:
    code: int
    text: str
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def losses(self) -> list[float]:
        return [float(loss) for loss in re.findall(r"^epoch \d+ loss (\S+)", self.text, re.M)]

    @property
    def accuracy(self) -> float:
        found = re.findall(r"^test accuracy (\S+)", self.text, re.M)
        assert found, self.text[-3000:]
        return float(found[-1])


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in held:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in held]


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
) -> dict[str, Finished]:
    """Start all tasks through boot and return their results; output goes to files."""
    with ExitStack() as stack:
        started = {
            task: start_member(stack, python, target, cwd, own | env(task), cwd / task)
            for task, own in tf_configs(tasks).items()
        }
        return {task: finish(member, cwd / task) for task, member in started.items()}


def start_member(
    stack: ExitStack,
    python: str,
    target: Sequence[str],
    cwd: Path,
    env: dict[str, str],
    log: Path,
) -> Member:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stack.callback(ours.close)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    with theirs, open(log, "w") as output:
        process = subprocess.Popen(
            [python, str(BOOT), *target],
            env={
                **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "CUDA_VISIBLE_DEVICES": "-1",
                "TFCLUSTER_EVENTS_FD": str(theirs.fileno()),
                **env,
            },
            pass_fds=[theirs.fileno()],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
        )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return Member(process, ours)


def finish(task: Member, log: Path) -> Finished:
    events = []
    while message := task.events.recv(1 << 17):
        events.append(json.loads(message))
    return Finished(task.process.wait(), log.read_text(errors="replace"), events)


@pytest.fixture(scope="session")
def gang() -> Callable[..., dict[str, Finished]]:
    """Return a function that runs several tasks: `gang(python, tasks, target, cwd=…, env=…)`."""
    return run_gang
