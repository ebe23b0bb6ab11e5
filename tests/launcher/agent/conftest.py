"""A fake coordinator that starts a real agent and talks to it over its socket."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.integration.live import is_alive as is_alive

from tfcluster.agent import protocol
from tfcluster.agent.agent_config import AgentConfig
from tfcluster.backends.local.local_nodes import AgentProcess

PATIENCE_S = 40.0


class Peer:
    """A connection to an agent; the next connection may resume its `session`."""

    def __init__(self, path: str, session: protocol.Session | None = None) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.socket.settimeout(PATIENCE_S)
        self.session = session or protocol.Session()
        self.messages: list[dict[str, Any]] = []
        self.logs: dict[str, bytearray] = {}
        self.streams: dict[str, bytearray] = {}
        """The streams of commands beside tasks: ``7/stdout`` → its bytes."""
        self.written: dict[str, int] = {}
        """How much of their stdins was written."""
        self._decoder = protocol.Decoder(after_magic=True)

    def hello(self, **changes: Any) -> dict[str, Any]:
        """Send a hello; return the welcome or the refusal."""
        message = {"type": "hello", "n": 0, "protocol": protocol.VERSION, "run_id": "run-1"}
        message |= {"node": "local", "token": "secret", "last_seen": self.session.last_seen}
        self.socket.sendall(protocol.control_frame(message | changes))
        answer = self.take("welcome", "refused")
        for frame in self.session.resume(answer.get("last_seen", 0)):
            self.socket.sendall(frame)
        return answer

    def send(self, type_: str, **fields: Any) -> None:
        self.socket.sendall(self.session.number({"type": type_, **fields}))

    def take(self, *types: str, **fields: Any) -> dict[str, Any]:
        """Return the next message of these types with these fields; keep the others."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for message in self.messages:
                if message["type"] in types and fields.items() <= message.items():
                    self.messages.remove(message)
                    return message
            if not self.read():
                break
        raise AssertionError(f"no {types} {fields} came; but: {self.messages}")

    def read(self) -> bool:
        """Read the next bytes; return False at the end of the connection."""
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionError:
            return False
        control = False
        for kind, payload in self._decoder.feed(data):
            control = self._on_frame(kind, payload) or control
        if control:
            with contextlib.suppress(ConnectionError):  # the agent may have ended by now
                self.socket.sendall(self.session.acknowledgement())
        return bool(data)

    def _on_frame(self, kind: bytes, payload: bytes) -> bool:
        if kind == protocol.LOG:
            name, offset, data = protocol.read_data(payload)
            log = self.logs.setdefault(name, bytearray())
            if offset != protocol.NOT_IN_FILE:
                assert offset == len(log), "log bytes came twice, or some are missing"
            log += data
        elif kind == protocol.EXEC:
            name, offset, data = protocol.read_data(payload)
            if name.endswith("/stdin"):
                self.written[name] = offset
            else:
                stream = self.streams.setdefault(name, bytearray())
                assert offset == len(stream)
                stream += data
        elif kind == protocol.ACK:
            self.session.acknowledged(protocol.read_number(payload))
        elif kind == protocol.CONTROL:
            message = protocol.read_control(payload)
            if self.session.is_new(message):
                self.messages.append(message)
            return True
        return False

    def close(self) -> None:
        self.socket.close()


class Rig:
    """A run folder with one agent."""

    def __init__(self, folder: Path, *, python: str = sys.executable, **config: Any) -> None:
        self.folder, self.python = folder, python
        where = {"socket": str(folder / "agent.sock"), "ports_dir": str(folder / "ports")}
        self.config = AgentConfig(run_id="run-1", node="local", token="secret", **where | config)
        self.agent = AgentProcess(python, self.config)
        self.peer = Peer(self.config.socket)
        self.welcome = self.peer.hello()
        self.pid: int = self.welcome["pid"]
        self.guard_pid: int = self.welcome["guard_pid"]

    def reconnect(self, **hello: Any) -> Peer:
        old = self.peer
        old.close()
        self.peer = Peer(self.config.socket, old.session)
        self.peer.messages, self.peer.logs = old.messages, old.logs
        has = {name: len(log) for name, log in old.logs.items()}
        self.peer.hello(**{"log_offsets": has, **hello})
        return self.peer

    def start(self, *argv: str, task: str = "worker:0", **spec: Any) -> dict[str, Any]:
        """Start one task; return its `task_started` or `start_failed`."""
        entry = {"task": task, "argv": list(argv), "env": {}, "cwd": "/"}
        entry |= {"log": str(self.log(task))} | spec
        self.peer.send("start", attempt=1, tasks=[entry])
        return self.peer.take("task_started", "start_failed", task=task)

    def start_python(self, code: str, *args: str, **spec: Any) -> dict[str, Any]:
        return self.start(sys.executable, "-S", "-c", code, *args, **spec)

    def exited(self, task: str = "worker:0") -> dict[str, Any]:
        return self.peer.take("task_exited", task=task)

    def stop(self, *tasks: str, grace_s: float = 20) -> None:
        """Order the agent to stop the tasks, or worker:0."""
        self.peer.send("stop", tasks=[*(tasks or ("worker:0",))], grace_s=grace_s, why="a test")

    def shut_down(self) -> None:
        self.peer.send("shutdown")
        self.peer.take("bye")

    def log(self, task: str = "worker:0") -> Path:
        return self.folder / "logs" / f"{task.replace(':', '-')}.log"

    def end(self) -> None:
        """Close the connection and wait for guard and agent."""
        self.peer.close()
        process = self.agent._process
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        errors = "" if self.agent._errors.closed else self.agent.last_words()
        self.agent._errors.close()
        assert not errors, errors


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder with a short path: a Unix socket's path may have 108 bytes."""
    path = Path(tempfile.mkdtemp(prefix="tfc-"))
    yield path
    shutil.rmtree(path)


NewRig = Callable[..., Rig]


@pytest.fixture
def new_rig(folder: Path) -> Iterator[NewRig]:
    """Yield a function that starts agents; all are ended afterwards and must leave no socket."""
    rigs: list[Rig] = []

    def make(**config: Any) -> Rig:
        subfolder = folder / str(len(rigs))
        subfolder.mkdir(0o700)
        rigs.append(Rig(subfolder, **config))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.end()
        assert not Path(rig.config.socket).exists()


@pytest.fixture
def rig(new_rig: NewRig) -> Rig:
    return new_rig()


def children_of(parent: int) -> list[int]:
    """Return the living children of a process, including adopted ones."""
    children = psutil.Process(parent).children() if is_alive(parent) else []
    return [child.pid for child in children if is_alive(child.pid)]


def wait_until(condition: Callable[[], bool], *, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
