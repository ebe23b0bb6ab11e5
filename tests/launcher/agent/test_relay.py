"""A bare node is reached through any pair of pipes, and reached again after they broke."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest
from tests import old_pythons
from tests.launcher.poisoned import poison

from tfcluster.agent import bootstrap, protocol, seat
from tfcluster.backends import bundle

from .conftest import is_alive, kill, wait_until

NOISE = "echo 'Welcome to gpu1'; exec "


class Transport:
    """What `ssh host` will be: a shell that greets, then a bootstrap on its stdin and stdout."""

    def __init__(
        self,
        folder: Path,
        made: bundle.Bundle,
        session: protocol.Session,
        *,
        starts: bool = True,
        seat: Path | None = None,
    ) -> None:
        source = Path(bootstrap.__file__).read_text()
        argv = ["sh", "-c", NOISE + '"$@"', "sh", sys.executable, "-I", "-S", "-c", source]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin: IO[bytes] = self.process.stdin
        self.stdout: IO[bytes] = self.process.stdout
        self.session, self.messages = session, list[dict[str, Any]]()
        self.decoder = protocol.Decoder(after_magic=True)
        config = {"run_id": "run-1", "node": "gpu1", "token": "secret", "lease_s": 30.0}
        config["starts"] = starts
        config |= {"seat": str(seat)} if seat is not None else {}
        config |= {"socket": str(folder / "agent.sock"), "ports_dir": str(folder / "ports")}
        order = {"digest": made.digest, "cache": str(folder / "cache"), "config": config}
        self.write(json.dumps(order).encode() + b"\n")
        assert self.stdout.readline() == b"Welcome to gpu1\n"
        self.answer = self.stdout.readline()
        if self.answer == bootstrap.NEED:
            self.write(b"%d\n" % len(made.zip_bytes) + made.zip_bytes)
        hello = {"type": "hello", "n": 0, "protocol": protocol.VERSION, "token": "secret"}
        hello |= {"run_id": "run-1", "node": "gpu1", "last_seen": session.last_seen}
        self.write(protocol.control_frame(hello))
        self.welcome = self.take("welcome")

    def write(self, data: bytes) -> None:
        self.stdin.write(data)
        self.stdin.flush()

    def take(self, kind: str) -> dict[str, Any]:
        while True:
            for message in self.messages:
                if message["type"] == kind:
                    self.messages.remove(message)
                    return message
            data = os.read(self.stdout.fileno(), 1 << 16)
            assert data, f"the relay ended before {kind}"
            for frame_kind, payload in self.decoder.feed(data):
                if frame_kind == protocol.CONTROL:
                    message = protocol.read_control(payload)
                    if self.session.is_new(message):
                        self.messages.append(message)

    def close(self) -> None:
        self.stdin.close()
        self.stdout.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def made() -> bundle.Bundle:
    return bundle.build()


def test_bundle_agent_and_session_outlive_the_transport(folder: Path, made: bundle.Bundle) -> None:
    session = protocol.Session()
    first = Transport(folder, made, session)
    pid = first.welcome["pid"]
    try:
        assert first.answer == bootstrap.NEED
        task = {"task": "worker:0", "argv": ["sh", "-c", "sleep .3; exit 6"], "cwd": "/"}
        order = {"type": "start", "attempt": 1, "tasks": [{**task, "log": str(folder / "log")}]}
        first.write(session.number(order))
        first.take("task_started")
        kill(first.process.pid)
        first.close()
        second = Transport(folder, made, session, starts=False)
        assert second.answer == bootstrap.HAVE
        assert second.welcome["pid"] == pid
        assert second.take("task_exited")["exit_code"] == 6
        second.write(session.number({"type": "shutdown"}))
        second.take("bye")
        second.close()
        wait_until(lambda: not is_alive(pid))
    finally:
        if is_alive(pid):
            kill(pid)


def test_bytecode_that_lies_beside_the_bundle_is_not_run(folder: Path, made: bundle.Bundle) -> None:
    """A job on that node may have put it there; the digest of the sources says nothing of it."""
    first = Transport(folder, made, protocol.Session())
    unpacked = folder / "cache/bundles" / made.digest / "agent/tfcluster/agent"
    for name in ("relay", "agent"):
        poison(unpacked / f"{name}.py", f"open({str(folder / 'evil')!r}, 'w')")
    second = Transport(folder, made, protocol.Session(), starts=False)
    pid = second.welcome["pid"]
    second.write(second.session.number({"type": "shutdown"}))
    second.take("bye")
    for one in (first, second):
        one.close()
    wait_until(lambda: not is_alive(pid))
    poison(unpacked / "agent.py", f"open({str(folder / 'evil')!r}, 'w')")
    third = Transport(folder, made, protocol.Session())
    assert third.answer == bootstrap.HAVE
    third.write(third.session.number({"type": "shutdown"}))
    third.take("bye")
    third.close()
    wait_until(lambda: not is_alive(third.welcome["pid"]))
    assert not (folder / "evil").exists()


def sit_down(path: Path) -> subprocess.Popen[bytes]:
    """As the first process of a container does."""
    source = Path(seat.__file__).read_text()
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", source, str(path)])


@pytest.mark.parametrize("python", [*old_pythons.REAL, ""])
def test_a_container_whose_python_is_too_old_says_so(tmp_path: Path, python: str) -> None:
    python = python or old_pythons.pretending(tmp_path / "python3")
    source = Path(seat.__file__).read_text()
    argv = [python, "-I", "-S", "-c", source, "a-seat"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"Python 3.9 or newer is needed, and {python} is 3.")


def test_a_process_that_waits_becomes_the_agent_and_ends_with_it(
    folder: Path, made: bundle.Bundle
) -> None:
    waits, session = sit_down(folder / "seat"), protocol.Session()
    first = Transport(folder, made, session, seat=folder / "seat")
    try:
        assert first.welcome["guard_pid"] == waits.pid
        assert not (folder / "seat").exists()
        kill(first.process.pid)
        first.close()
        second = Transport(folder, made, session, starts=False, seat=folder / "seat")
        assert second.welcome["pid"] == first.welcome["pid"]
        second.write(session.number({"type": "shutdown"}))
        second.take("bye")
        second.close()
        assert waits.wait(timeout=10) == 0
    finally:
        waits.kill()
        waits.wait()
