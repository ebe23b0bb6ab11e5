"""Commands beside a task: its environment, their streams, and their ends."""

from __future__ import annotations

import os
import selectors
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from tests.launcher.agent.conftest import Rig, is_alive, wait_until

from tfcluster.agent import budgets, protocol
from tfcluster.agent import catalogue as msg
from tfcluster.agent.net.coordinator_link import CoordinatorLink
from tfcluster.agent.tasks.exec_processes import ExecProcesses
from tfcluster.agent.tasks.task import Task

WINDOW = budgets.EXEC_BYTES_AHEAD


class Beside:
    """A running task, and commands beside it."""

    def __init__(self, rig: Rig, **task: Any) -> None:
        self.rig, self.count = rig, 0
        assert rig.start("sleep", "600", **task)["type"] == "task_started"

    def run(self, *argv: str, **order: Any) -> int:
        """Start a command; return its id."""
        self.count += 1
        self.rig.peer.send("exec", id=self.count, task="worker:0", argv=[*argv], **order)
        self.rig.peer.take("exec_started", id=self.count)
        return self.count

    def shell(self, script: str, **order: Any) -> int:
        return self.run("sh", "-c", script, **order)

    def say(self, number: int, stream: str, offset: int, data: bytes = b"") -> None:
        frame = protocol.data_frame(protocol.EXEC, f"{number}/{stream}", offset, data)
        self.rig.peer.socket.sendall(frame)

    def read(self, number: int, most: int, stream: str = "stdout") -> bytes:
        """Return what a stream has sent, once that is so much."""
        name = f"{number}/{stream}"
        while len(self.rig.peer.streams.get(name, b"")) < most:
            assert self.rig.peer.read()
        return bytes(self.rig.peer.streams[name])

    def pid(self, number: int) -> int:
        """Return the number that it has printed."""
        while not self.rig.peer.streams.get(f"{number}/stdout", b"").endswith(b"\n"):
            assert self.rig.peer.read()
        return int(self.rig.peer.streams[f"{number}/stdout"])

    def end(self, number: int) -> tuple[int | None, int | None]:
        ended = self.rig.peer.take("exec_ended", id=number)
        return ended["exit_code"], ended["signal"]

    def output(self, number: int) -> str:
        """Return the whole stdout of a command that has ended well."""
        assert self.end(number) == (0, None), self.rig.peer.streams
        return self.rig.peer.streams[f"{number}/stdout"].decode()


@pytest.fixture
def beside(rig: Rig) -> Beside:
    return Beside(rig)


def test_it_has_the_environment_of_its_task_and_is_none(rig: Rig, tmp_path: Path) -> None:
    env = {"TF_CONFIG": "{}", "TFCLUSTER_TASK": "worker:0"}
    task = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert rig.start(*task, env=env, cwd=str(tmp_path))["type"] == "task_started"
    rig.peer.send("exec", id=1, task="worker:0", argv=["env"])
    rig.peer.send("exec", id=2, task="worker:0", argv=["sh", "-c", "pwd; command -v python3"])
    for number in (1, 2):
        assert rig.peer.take("exec_ended", id=number)["exit_code"] == 0
    shown = rig.peer.streams["1/stdout"].decode().splitlines()
    assert {"TF_CONFIG={}", "TFCLUSTER_TASK=worker:0"} <= {*shown}
    assert not [line for line in shown if "TFCLUSTER_EVENTS" in line]
    folder = os.path.dirname(sys.executable)
    assert rig.peer.streams["2/stdout"].decode().split() == [str(tmp_path), f"{folder}/python3"]
    assert not [m for m in rig.peer.messages if m["type"] in ("task_exited", "task_event")]
    assert not rig.log().read_bytes()


def test_its_streams_are_apart_and_its_end_is_passed_on(beside: Beside) -> None:
    number = beside.shell("cat; echo error >&2; exit 7")
    beside.say(number, "stdin", 0, b"some")
    beside.say(number, "stdin", 4, b" words")
    beside.say(number, "stdin", 10)
    assert beside.end(number) == (7, None)
    assert beside.rig.peer.streams == {"1/stdout": b"some words", "1/stderr": b"error\n"}
    assert beside.end(beside.shell("kill -TERM $$")) == (None, 15)


def test_a_terminal_has_its_size_and_its_keys(beside: Beside) -> None:
    size = {"kind": "xterm", "rows": 33, "columns": 111}
    script = "trap 'stty size; exit' WINCH; tty >/dev/null && echo $TERM; stty size"
    script += "; while :; do sleep 0.01; done"
    number = beside.shell(script, terminal=size)
    beside.read(number, len(b"xterm\r\n33 111\r\n"))
    beside.say(number, "size", 0, b"44 99")
    assert beside.output(number) == "xterm\r\n33 111\r\n44 99\r\n"
    asleep = beside.run("sleep", "600", terminal=size)
    beside.say(asleep, "stdin", 0, b"\x03")
    assert beside.end(asleep) == (None, 2)


def test_a_fast_writer_waits_for_its_reader(beside: Beside) -> None:
    number = beside.run("yes")
    beside.read(number, WINDOW)
    beside.rig.peer.send("take_stacks", tasks=["worker:0"])
    beside.rig.peer.take("stacks")  # had it more to send, that would have come before
    assert len(beside.rig.peer.streams["1/stdout"]) == WINDOW
    beside.say(number, "stdout", WINDOW // 2)
    beside.read(number, WINDOW + WINDOW // 2)
    beside.rig.peer.send("end_exec", id=number)
    assert beside.end(number) == (None, 9)


def test_what_its_stdin_does_not_take_waits_and_what_nobody_reads_is_dropped(
    beside: Beside, tmp_path: Path
) -> None:
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    number = beside.shell(f"cat {fifo}; wc -c")
    for offset in range(0, WINDOW, WINDOW // 4):
        beside.say(number, "stdin", offset, b"x" * (WINDOW // 4))
    fifo.write_bytes(b"")
    wait_until(lambda: beside.rig.peer.read() and bool(beside.rig.peer.written))
    beside.say(number, "stdin", WINDOW)
    assert beside.output(number).strip() == str(WINDOW)

    deaf = beside.shell("exec <&-; echo closed; sleep 600")
    beside.read(deaf, len(b"closed\n"))
    beside.say(deaf, "stdin", 0, b"x" * WINDOW)
    wait_until(lambda: beside.rig.peer.read() and f"{deaf}/stdin" in beside.rig.peer.written)


LEAVES = "setsid sleep 600 & echo $!; wait"


@pytest.mark.linux("stray processes are found in /proc")
def test_all_that_it_has_started_ends_with_it(beside: Beside) -> None:
    """Whether it ends by itself, or is ended, or its task is."""
    left = beside.shell("setsid sleep 600 & echo $!")
    assert not is_alive(int(beside.output(left)))
    ended, of_task = beside.shell(LEAVES), beside.shell(LEAVES)
    pids = [beside.pid(number) for number in (ended, of_task)]
    assert all(map(is_alive, pids))
    beside.rig.peer.send("end_exec", id=ended)
    assert beside.end(ended) == (None, 9)
    assert [is_alive(pid) for pid in pids] == [False, True]
    beside.rig.stop(grace_s=0)
    assert beside.rig.peer.take("exec_ended", id=of_task)["task_has_ended"]
    assert not is_alive(pids[1])
    assert beside.rig.exited()["ended_by"] == "tfcluster"


@pytest.mark.linux("a process dies with its parent")
def test_it_ends_with_the_connection_and_with_the_agent(new_rig: Any) -> None:
    beside = Beside(new_rig(lease_s=60.0))
    pid = beside.pid(beside.shell(LEAVES))
    beside.rig.reconnect()
    wait_until(lambda: not is_alive(pid))
    assert beside.end(1) == (None, 9)
    last = beside.pid(beside.shell(LEAVES))
    beside.rig.shut_down()
    wait_until(lambda: not is_alive(last))


def test_what_cannot_be_started_has_a_reason(beside: Beside) -> None:
    peer = beside.rig.peer
    peer.send("exec", id=1, task="worker:7", argv=["true"])
    assert peer.take("exec_failed", id=1)["error"] == "worker:7 does not run"
    peer.send("exec", id=2, task="worker:0", argv=["/no/such"])
    assert peer.take("exec_failed", id=2)["error"] == "/no/such: No such file or directory"
    beside.count = 2
    numbers = [beside.run("sleep", "600") for _ in range(budgets.EXEC_COMMANDS)]
    peer.send("exec", id=99, task="worker:0", argv=["true"])
    assert "16 commands run on its node already" in peer.take("exec_failed", id=99)["error"]
    beside.say(numbers[0], "stdin", 5, b"not the beginning")  # a wrong frame ends only its command
    assert beside.end(numbers[0]) == (None, 9)
    assert beside.output(beside.run("echo", "go on")) == "go on\n"


def test_a_command_that_a_hung_disk_keeps_from_its_start_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[msg.Report] = []
    link = cast("CoordinatorLink", SimpleNamespace(send=sent.append))
    argv = [sys.executable, "-c", ""]
    order = msg.TaskOrder(task="worker:0", argv=argv, env={}, cwd="/", log="/dev/null")
    task = cast("Task", SimpleNamespace(name="worker:0", order=order))
    monkeypatch.setattr(os, "chdir", lambda _: time.sleep(600))  # in the child of the fork
    with selectors.DefaultSelector() as selector:
        commands = ExecProcesses(recorder := MagicMock(), selector, link)
        commands.start(msg.Exec(id=1, task="worker:0", argv=["true"], terminal=None), task)
        assert not sent
        commands.end(1)
        commands.note_end(*os.waitpid(recorder.add_group.call_args.args[0], 0))
        commands.finish_ended(lambda: None)
    assert sent[-1] == msg.ExecEnded(id=1, exit_code=None, signal=9, task_has_ended=False)
