"""The first program of a pod and the command that dials it, as real processes on loopback."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tfcluster.agent.containers import exec_server
from tfcluster.backends.kubernetes import exec_client

pytestmark = pytest.mark.linux("it runs in containers")


class Pod:
    """An exec server, as PID 1 of a pod."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.token = folder / "token"
        self.token.write_text("the token")
        argv = [sys.executable, "-I", "-S", exec_server.__file__, "--port=0"]
        argv += [f"--token={self.token}", *options]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdout is not None
        found = re.search(rb"port (\d+)", self.process.stdout.readline())
        assert found is not None
        self.address = f"127.0.0.1:{int(found[1])}"

    def dial(self, *argv: str, token: Path | None = None) -> list[str]:
        return exec_client.address_argv(self.address, token or self.token, argv)

    def run(self, *argv: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(self.dial(*argv), input=stdin, capture_output=True, timeout=200)


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    made = Pod(tmp_path)
    yield made
    made.process.kill()
    made.process.communicate()


@pytest.mark.parametrize(
    ("argv", "code", "stderr"),
    [
        (("sh", "-c", "cat; echo trouble >&2; exit 7"), 7, b"trouble\n"),
        (("sh", "-c", "cat; kill -9 $$"), 128 + signal.SIGKILL, b""),
        (("no-such-program",), exec_server.NOT_FOUND, b"no-such-program"),
    ],
)
def test_streams_and_the_end_of_a_command_are_joined_as_in_a_shell(
    pod: Pod, argv: tuple[str, ...], code: int, stderr: bytes
) -> None:
    done = pod.run(*argv, stdin=b"text")
    assert done.returncode == code
    assert stderr in done.stderr
    assert done.stdout == (b"text" if argv[0] == "sh" else b"")


def test_large_binary_streams_pass_both_ways_at_once(pod: Pod) -> None:
    data = os.urandom(20_000_000)
    assert pod.run("cat", stdin=data).stdout == data


def test_a_caller_without_the_token_gets_no_process(pod: Pod, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("another token")
    argv = pod.dial("sh", "-c", f"touch {tmp_path}/was-here", token=wrong)
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=200)
    assert done.returncode == exec_client.NO_CONNECTION
    assert not (tmp_path / "was-here").exists()


def test_a_cut_connection_kills_its_process(pod: Pod, tmp_path: Path) -> None:
    """The end of the fifo's last writer shows that the process is gone."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = f"exec 3>{fifo}; echo up >&3; exec sleep 1000"
    dial = subprocess.Popen(pod.dial("sh", "-c", code), stdin=subprocess.PIPE)
    with open(fifo, "rb") as file:
        assert file.readline() == b"up\n"
        dial.kill()
        dial.communicate()
        assert file.read() == b""


def test_a_connection_can_be_closed_while_a_thread_reads(pod: Pod) -> None:
    token, here = pod.token.read_bytes(), exec_client.connect(pod.address)
    process = exec_client.PodProcess(here, token, ["sleep", "600"])

    def read() -> None:
        with contextlib.suppress(OSError, ValueError):
            process.read(1)

    reader = threading.Thread(target=read, daemon=True)
    closer = threading.Thread(target=process.close, daemon=True)
    reader.start()
    time.sleep(0.2)  # it waits for what the process never writes
    closer.start()
    for thread in (closer, reader):
        thread.join(60)
        assert not thread.is_alive()


def test_what_is_to_be_alone_starts_once_all_that_was_started_before_is_dead(pod: Pod) -> None:
    left = "setsid sh -c 'echo $$; exec sleep 600' & wait"  # as an agent leaves its connection
    argv = pod.dial("sh", "-c", left)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as former:
        assert former.stdout is not None
        process = psutil.Process(int(former.stdout.readline()))
        token, here = pod.token.read_bytes(), exec_client.connect(pod.address)
        with exec_client.PodProcess(here, token, ["echo", "here"], is_alone=True) as alone:
            assert alone.readall() == b"here\n"
        assert not process.is_running()


def test_the_pods_sigterm_reaches_an_agent_whose_end_is_the_pods(pod: Pod, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    start_agent(pod, f"signal.pause(); open({str(ended)!r}, 'w').close()")
    pod.process.terminate()
    assert pod.process.wait(60) == 128 + signal.SIGTERM
    assert ended.exists()


def start_agent(pod: Pod, ends_with: str) -> None:
    """Start a guard and its agent, which leave the process group of their connection."""
    agent = (
        "import os, signal, sys\n"
        "ended, ready = os.pipe()\n"
        "if os.fork(): os.read(ended, 1), os._exit(0)\n"
        "os.setsid()\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork(): sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "os.write(ready, b'x')\n"
        f"{ends_with}\n"
    )
    with subprocess.Popen(
        pod.dial("python", "-c", agent), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as dial:
        dial.communicate(timeout=200)


def test_a_pod_whose_agent_has_ended_goes_on_and_has_its_files(pod: Pod, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    start_agent(pod, f"open({str(ended)!r}, 'w').close(); sys.exit(3)")
    while not ended.exists():
        assert pod.process.poll() is None
        time.sleep(0.01)
    assert pod.run("cat", str(ended)).returncode == 0
    pod.process.terminate()
    assert pod.process.wait(60) == 128 + signal.SIGTERM


def test_a_container_that_follows_another_empties_what_counts_as_its_memory(tmp_path: Path) -> None:
    shm = tmp_path / "shm"
    (shm / "nccl").mkdir(parents=True)
    (shm / "segment").write_bytes(bytes(100))
    pod = Pod(tmp_path, f"--empty={shm}")
    pod.process.kill()
    pod.process.communicate()
    assert [*shm.iterdir()] == []


def test_a_program_that_failed_ends_the_pod_with_its_exit_code(tmp_path: Path) -> None:
    pod = Pod(tmp_path, "--then", "sh", "-c", "exit 3")
    pod.process.communicate(timeout=200)
    assert pod.process.returncode == 3


def test_a_connection_without_an_agent_does_not_keep_a_pod_that_is_to_end(pod: Pod) -> None:
    with subprocess.Popen(
        pod.dial("python", "-c", "import time; print('here', flush=True); time.sleep(600)"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as dial:
        assert dial.stdout is not None
        assert dial.stdout.readline() == b"here\n"
        pod.process.terminate()
        assert pod.process.wait(60) == 128 + signal.SIGTERM
        dial.communicate(timeout=200)


def test_files_that_are_being_fetched_keep_a_server_whose_program_has_ended(
    tmp_path: Path,
) -> None:
    is_fetched = tmp_path / "is-fetched"
    program = ("sh", "-c", f"until [ -e {is_fetched} ]; do sleep 0.05; done")
    pod = Pod(tmp_path, "--then", *program)
    with subprocess.Popen(
        pod.dial("cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as reading:
        assert reading.stdin is not None
        assert reading.stdout is not None
        reading.stdin.write(b"begun\n")
        assert reading.stdout.readline() == b"begun\n"
        is_fetched.touch()
        while len(psutil.Process(pod.process.pid).children()) > 1:  # the program, the connection
            time.sleep(0.01)
        assert pod.process.poll() is None
        reading.communicate(b"whole", timeout=200)
    pod.process.communicate(timeout=200)
    assert pod.process.returncode == 0


def test_a_caller_that_does_not_sign_in_is_cut_off(pod: Pod) -> None:
    host, _, port = pod.address.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as caller:
        assert len(caller.recv(64)) == exec_server.NONCE_BYTES
        caller.settimeout(60)
        assert caller.recv(1) == b""  # after 10 s, whatever it trickles


def test_callers_without_the_token_get_no_process_and_keep_nobody_out(pod: Pod) -> None:
    host, _, port = pod.address.rpartition(":")
    server, callers = psutil.Process(pod.process.pid), list[socket.socket]()
    try:
        for _ in range(100):
            callers.append(socket.create_connection((host, int(port)), 60))
            assert len(callers[-1].recv(64)) == exec_server.NONCE_BYTES
        assert server.children() == []
        assert len([each for each in callers if is_open(each)]) <= exec_server.MOST_UNPROVEN
        assert pod.run("echo", "here").stdout == b"here\n"
    finally:
        for caller in callers:
            caller.close()


def is_open(connection: socket.socket) -> bool:
    """Return whether the other side has neither sent anything nor closed the connection."""
    connection.setblocking(False)
    try:
        connection.recv(1)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def test_a_proof_that_comes_in_pieces_is_one(pod: Pod) -> None:
    host, _, port = pod.address.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as caller:
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        nonce, token = caller.recv(64), pod.token.read_bytes()
        proof = exec_server.sign(token, nonce, b"client") + bytes(32)
        for at in range(0, len(proof), 8):
            caller.sendall(proof[at : at + 8])
        assert caller.recv(64) == exec_server.sign(token, bytes(32), b"server")
        caller.sendall(b'{"argv": ["echo", "here"]}\n')
        assert caller.recv(64)[exec_server.HEADER.size :].startswith(b"here\n")
