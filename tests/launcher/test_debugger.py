"""What `tfcluster debug` says where debugpy cannot be attached, and its `launch.json`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tfcluster import debugger
from tfcluster.errors import InterpreterError, SetupError
from tfcluster.rundir.exec_stream import ExecEnd

pytestmark = pytest.mark.linux("it finds the task's process in /proc")


class Answer:
    """A node whose Python answers with a line."""

    def __init__(self, line: str, *, code: int = 0, has_ended: bool = False) -> None:
        self._line, self._end = line, ExecEnd(code, task_has_ended=has_ended)

    def __call__(
        self, argv: Sequence[str], *, stdin: int | None, stdout: int, stderr: int
    ) -> ExecEnd:
        assert (argv[0], argv[-1], stdin) == ("python3", "123", None)
        os.write(stdout, self._line.encode())
        return self._end


def attach(code: int = 0, **facts: object) -> debugger.Listening:
    line = json.dumps({"python": "/opt/py/bin/python3", "cwd": "/work", **facts})
    return debugger.attach(Answer(line + "\n", code=code), "worker:1", 123)


def test_an_obstacle_is_named_with_what_to_do() -> None:
    assert attach(port=5678) == debugger.Listening(5678, "/work")
    install = "tfcluster exec worker:1 -- /opt/py/bin/python3 -m pip install debugpy"
    with pytest.raises(InterpreterError, match=f"finds no debugpy\n  → {install}; for a container"):
        attach(obstacle="no debugpy")
    with pytest.raises(SetupError, match=r"before Python 3.12.*\n.*--except TASK"):
        attach(obstacle="no helper")
    with pytest.raises(SetupError, match=r"its machine has no /proc\n.*--except TASK"):
        attach(obstacle="no /proc")
    with pytest.raises(SetupError, match=r"main thread is in native code.*\n.*tfcluster stacks"):
        attach(obstacle="silent")
    with pytest.raises(SetupError, match="ended with exit code 127"):
        debugger.attach(Answer("", code=127), "worker:1", 123)
    with pytest.raises(SetupError, match="worker:1 has ended while debugpy attached"):
        debugger.attach(Answer("", code=137, has_ended=True), "worker:1", 123)


@pytest.mark.parametrize(
    ("options", "said"), [(["-S"], "finds no debugpy"), ([], "its process runs without hooks")]
)
def test_a_process_that_the_signal_would_end_does_not_get_it(options: list[str], said: str) -> None:
    def execute(argv: Sequence[str], *, stdin: int | None, stdout: int, stderr: int) -> ExecEnd:
        done = subprocess.run([sys.executable, *options, *argv[1:]], stdout=stdout, env={})
        return ExecEnd(done.returncode, task_has_ended=False)

    process = subprocess.Popen(["sleep", "600"])
    try:
        with pytest.raises(SetupError, match=f"worker:1 cannot be debugged: .*{said}"):
            debugger.attach(execute, "worker:1", process.pid)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_connections_are_carried_to_the_port_and_end_with_the_block() -> None:
    def upper(argv: Sequence[str], *, stdin: int | None, stdout: int, stderr: int) -> ExecEnd:
        assert (argv[0], argv[-1], stdin) == ("python3", "5678", stdout)
        while data := os.read(stdout, 100):
            os.write(stdout, data.upper())
        return ExecEnd(0, task_has_ended=False)

    with debugger.tunnel(upper, 5678) as port:
        peers = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(2)]
        for peer in peers:
            peer.sendall(b"hello")
            assert peer.recv(100) == b"HELLO"
        with (
            pytest.raises(SetupError, match=f"the port {port} is not free"),
            debugger.tunnel(upper, 5678, port=port),
        ):
            pass
    for peer in peers:
        assert peer.recv(100) == b""
        peer.close()


def test_a_folder_that_this_machine_lacks_is_the_open_one(tmp_path: Path) -> None:
    def mapping(workdir: str) -> dict[str, str]:
        text = debugger.launch_json("worker:1", 5678, workdir=workdir, folder="/there")
        (configuration,) = json.loads(text)["configurations"]
        (only,) = configuration["pathMappings"]
        return dict(only)

    assert mapping(str(tmp_path)) == {"localRoot": str(tmp_path), "remoteRoot": "/there"}
    assert mapping("/no/such") == {"localRoot": "${workspaceFolder}", "remoteRoot": "/there"}
