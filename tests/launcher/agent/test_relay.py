"""A node without tfcluster is reached through two pipes, and again after they broke."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psutil
import pytest
from tests import old_pythons
from tests.launcher.poisoned import poison

from tfcluster.agent import bootstrap, protocol, relay
from tfcluster.agent.agent_config import AgentConfig
from tfcluster.agent.containers import container_wait
from tfcluster.backends import bundle

from .conftest import PATIENCE_S, is_alive, kill, wait_until

NOISE = "echo 'Welcome to gpu1'; exec "


class Transport:
    """A substitute for `ssh host`: a shell that prints noise and then runs the bootstrap."""

    def __init__(
        self,
        folder: Path,
        made: bundle.Bundle,
        session: protocol.Session,
        *,
        starts: bool = True,
        waiting: Path | None = None,
        previous: dict[str, Any] | None = None,
        is_tied: bool = False,
        **invalid: Any,
    ) -> None:
        """Start the transport and send a hello; `greet` waits for the answer."""
        self._folder = folder
        source = Path(bootstrap.__file__).read_text()
        argv = ["sh", "-c", NOISE + '"$@"', "sh", sys.executable, "-I", "-S", "-c", source]
        with (folder / "said").open("wb") as stderr:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin: IO[bytes] = self.process.stdin
        self.stdout: IO[bytes] = self.process.stdout
        self.session, self.messages = session, list[dict[str, Any]]()
        self.decoder = protocol.Decoder(after_magic=True)
        run = folder / "run"
        config = AgentConfig(
            run_id="run-1",
            node="gpu1",
            token="secret",
            socket=str(run / "agent.sock"),
            ports_dir=str(run / "ports"),
            lease_s=30.0,
            starts=starts,
            former=previous,
            is_tied=is_tied,
            container_socket=None if waiting is None else str(waiting),
        )
        fields = config.to_json() | invalid
        order = {"digest": made.digest, "cache": str(folder / "cache"), "order": fields}
        self.write(json.dumps(order).encode() + b"\n")
        assert self.stdout.readline() == b"Welcome to gpu1\n"
        self.answer = self.stdout.readline()
        if self.answer == bootstrap.NEED:
            self.write(b"%d\n" % len(made.zip_bytes) + made.zip_bytes)
        hello = {"type": "hello", "n": 0, "protocol": protocol.VERSION, "token": "secret"}
        hello |= {"run_id": "run-1", "node": "gpu1", "last_seen": session.last_seen}
        with contextlib.suppress(BrokenPipeError):  # a relay that reaches no agent may have ended
            self.write(protocol.control_frame(hello))

    def greet(self) -> Transport:
        self.welcome = self.take("welcome")
        return self

    def refusal(self) -> tuple[int, str]:
        """Return exit code and last output of a relay that reaches no agent."""
        code = self.process.wait(timeout=PATIENCE_S)
        self.close()
        return code, (self._folder / "said").read_text()

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

    def start(self, *argv: str) -> int:
        """Start a task; return its pid."""
        task = {"task": "worker:0", "argv": [*argv], "cwd": "/", "log": str(self._folder / "log")}
        self.write(self.session.number({"type": "start", "attempt": 1, "tasks": [task]}))
        pid: int = self.take("task_started")["pid"]
        return pid

    def end(self) -> None:
        """Shut the agent down."""
        self.write(self.session.number({"type": "shutdown"}))
        self.take("bye")
        self.close()
        wait_until(lambda: not is_alive(self.welcome["pid"]))

    def close(self) -> None:
        self.stdin.close()
        self.stdout.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def made() -> bundle.Bundle:
    return bundle.build()


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        ({"is_teid": True}, "a message 'agent_config' with unknown fields: 'is_teid'"),
        ({"lease_s": "30"}, "a message 'agent_config' whose lease_s is '30'"),
    ],
)
def test_a_configuration_that_is_no_agents_is_refused_with_the_field(
    folder: Path, made: bundle.Bundle, invalid: dict[str, Any], message: str
) -> None:
    code, said = Transport(folder, made, protocol.Session(), **invalid).refusal()
    assert (code, said.strip()) == (relay.NOT_REACHED, message)


def test_bundle_agent_and_session_outlive_the_transport(folder: Path, made: bundle.Bundle) -> None:
    session = protocol.Session()
    first = Transport(folder, made, session).greet()
    pid = first.welcome["pid"]
    try:
        assert first.answer == bootstrap.NEED
        first.start("sh", "-c", "sleep .3; exit 6")
        kill(first.process.pid)
        first.close()
        second = Transport(
            folder, made, session, starts=False, previous=first.welcome["identity"]
        ).greet()
        assert second.answer == bootstrap.HAVE
        assert second.welcome["pid"] == pid
        assert second.take("task_exited")["exit_code"] == 6
        second.end()
    finally:
        if is_alive(pid):
            kill(pid)


def test_bytecode_in_the_bundle_s_folder_is_not_run(folder: Path, made: bundle.Bundle) -> None:
    """A job on that node may have written it, and the digest of the sources does not cover it."""
    first = Transport(folder, made, protocol.Session()).greet()
    unpacked = folder / "cache/bundles" / made.digest / "agent/tfcluster/agent"
    for name in ("relay", "agent"):
        poison(unpacked / f"{name}.py", f"open({str(folder / 'evil')!r}, 'w')")
    previous = first.welcome["identity"]
    second = Transport(folder, made, protocol.Session(), starts=False, previous=previous).greet()
    second.end()
    first.close()
    poison(unpacked / "agent.py", f"open({str(folder / 'evil')!r}, 'w')")
    third = Transport(folder, made, protocol.Session()).greet()
    assert third.answer == bootstrap.HAVE
    third.end()
    assert not (folder / "evil").exists()


def test_an_agent_that_is_tied_to_its_connection_removes_its_files_before_the_relay_ends(
    folder: Path, made: bundle.Bundle
) -> None:
    """A scheduler kills the agent at once after the relay."""
    first = Transport(folder, made, protocol.Session(), is_tied=True).greet()
    pids = first.start("sleep", "300"), first.welcome["pid"]
    assert [*(folder / "run").rglob("*.sock")]
    first.stdin.close()
    first.process.wait(timeout=PATIENCE_S)
    first.stdout.close()
    assert not any(map(is_alive, pids))
    assert not [path for path in (folder / "run").rglob("*") if not path.is_dir()]


def test_an_agent_that_is_tied_to_another_connection_is_ended(
    folder: Path, made: bundle.Bundle
) -> None:
    first = Transport(folder, made, protocol.Session(), is_tied=True).greet()
    known = {"previous": first.welcome["identity"], "is_tied": True}
    second = Transport(folder, made, protocol.Session(), starts=False, **known)
    assert second.refusal() == (relay.AGENT_GONE, "the run's agent on this node has ended\n")
    assert first.process.wait(timeout=PATIENCE_S) == 0
    first.close()
    assert not is_alive(first.welcome["pid"])


def start_waiting(path: Path) -> subprocess.Popen[bytes]:
    """Start the process that waits for an agent in a container."""
    source = Path(container_wait.__file__).read_text()
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", source, str(path)])


@pytest.mark.linux("containers are Linux")
@pytest.mark.parametrize("python", [*old_pythons.REAL, ""])
def test_a_container_reports_a_python_that_is_too_old(tmp_path: Path, python: str) -> None:
    python = python or old_pythons.pretending(tmp_path / "python3")
    source = Path(container_wait.__file__).read_text()
    argv = [python, "-I", "-S", "-c", source, "an-exec-server"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"Python 3.9 or newer is needed, and {python} is 3.")


def test_a_waiting_process_becomes_the_agent_and_ends_with_it(
    folder: Path, made: bundle.Bundle
) -> None:
    waits, session = start_waiting(folder / "wait"), protocol.Session()
    first = Transport(folder, made, session, waiting=folder / "wait").greet()
    try:
        assert first.welcome["guard_pid"] == waits.pid
        assert not (folder / "wait").exists()
        kill(first.process.pid)
        first.close()
        second = Transport(
            folder,
            made,
            session,
            starts=False,
            waiting=folder / "wait",
            previous=first.welcome["identity"],
        ).greet()
        assert second.welcome["pid"] == first.welcome["pid"]
        second.end()
        assert waits.wait(timeout=PATIENCE_S) == 0
    finally:
        waits.kill()
        waits.wait()


class Scene:
    """An agent with a task, whose transport was cut and whose socket was removed."""

    def __init__(self, folder: Path, made: bundle.Bundle) -> None:
        self._folder, self._made, self.session = folder, made, protocol.Session()
        first = Transport(folder, made, self.session).greet()
        self.previous: dict[str, Any] = first.welcome["identity"]
        self.pid, self.guard = self.previous["pid"], self.previous["guard_pid"]
        self.task = first.start("sleep", "300")
        kill(first.process.pid)
        first.close()

    def clear(self) -> None:
        """Remove the socket, as a cleaner of the temporary folder does."""
        shutil.rmtree(self._folder / "run")

    def rejoin(self, **changes: Any) -> Transport:
        previous = {**self.previous, **changes}
        return Transport(self._folder, self._made, self.session, starts=False, previous=previous)

    def replace(self, **changes: Any) -> Transport:
        previous = {**self.previous, **changes}
        return Transport(self._folder, self._made, protocol.Session(), previous=previous)

    @property
    def living(self) -> list[int]:
        return [pid for pid in (self.pid, self.guard, self.task) if is_alive(pid)]

    def end(self) -> None:
        for pid in self.living:
            with contextlib.suppress(ProcessLookupError):  # the processes end one after the other
                os.kill(pid, signal.SIGCONT)
                kill(pid)


@pytest.fixture
def scene(folder: Path, made: bundle.Bundle) -> Iterator[Scene]:
    set_up = Scene(folder, made)
    yield set_up
    set_up.end()


def test_an_agent_whose_socket_was_removed_listens_again(scene: Scene) -> None:
    os.kill(scene.pid, signal.SIGSTOP)  # so that it cannot listen before the first relay arrives
    scene.clear()
    code, stderr = scene.rejoin().refusal()
    assert (code, stderr) == (
        relay.NOT_REACHED,
        "the run's agent on this node does not answer on its socket\n",
    )
    os.kill(scene.pid, signal.SIGCONT)
    wait_until(lambda: (scene._folder / "run" / "agent.sock").exists())
    again = scene.rejoin().greet()
    assert again.welcome["pid"] == scene.pid
    assert len(scene.living) == 3
    again.close()


def test_an_agent_is_gone_once_it_and_its_guard_have_ended(scene: Scene) -> None:
    kill(scene.guard)
    wait_until(lambda: not scene.living)
    code, stderr = scene.rejoin().refusal()
    assert (code, stderr) == (relay.AGENT_GONE, "the run's agent on this node has ended\n")


@pytest.mark.parametrize("guard_is_stopped", [False, True])
def test_a_new_agent_starts_once_the_previous_one_has_ended(
    scene: Scene, guard_is_stopped: bool
) -> None:
    """The previous agent is stopped and can be found only by its pid."""
    os.kill(scene.pid, signal.SIGSTOP)
    if guard_is_stopped:
        os.kill(scene.guard, signal.SIGSTOP)
    scene.clear()
    again = scene.replace().greet()
    try:
        assert scene.living == []
        assert again.welcome["pid"] != scene.pid
    finally:
        again.end()


def test_no_agent_starts_without_proof_that_the_previous_one_ended(scene: Scene) -> None:
    scene.clear()
    other_scope = {**scene.previous["where"], "pid_namespace": 1}
    code, stderr = scene.replace(where=other_scope).refusal()
    assert code == relay.NOT_REACHED
    assert "its lease must expire first" in stderr
    assert len(scene.living) == 3


def lock(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def test_relays_exclude_each_other_even_if_the_folder_was_removed(
    folder: Path, made: bundle.Bundle
) -> None:
    """The first relay locks a folder that was removed, the second one the next folder."""
    run = folder / "run"
    run.mkdir(mode=0o700)
    path = run / f"agent.sock{relay.LOCK}"
    first = lock(path)
    third = Transport(folder, made, protocol.Session())
    process = psutil.Process(third.process.pid)
    wait_until(lambda: str(path) in str(process.open_files()))
    path.unlink()
    run.rmdir()
    run.mkdir(mode=0o700)
    second = lock(path)
    os.close(first)
    wait_until(lambda: str(path) in str(process.open_files()))
    assert not (run / "agent.sock").exists()
    os.close(second)
    third.greet().end()
    assert not path.exists()
