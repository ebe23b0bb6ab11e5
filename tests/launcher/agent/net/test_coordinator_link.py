"""An agent refuses wrong coordinators; a reconnect within the lease loses nothing."""

from __future__ import annotations

import os
import signal
import stat
import time
from pathlib import Path

import pytest
from tests.launcher.agent.conftest import NewRig, Peer, Rig, is_alive, wait_until

from tfcluster.agent import protocol
from tfcluster.agent.processes import state_of
from tfcluster.agent.stop_clock import STOPPED_S


def test_only_the_owner_can_use_the_socket(rig: Rig) -> None:
    mode = os.stat(rig.config.socket).st_mode
    assert stat.S_IMODE(mode) == 0o600


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "another coordinator"),
        ({"token": "guessed"}, "wrong token"),
        ({"run_id": "run-2"}, "serves run run-1"),
        ({"node": "gpu1"}, "node local"),
        ({"protocol": 2}, "speaks 1"),
    ],
    ids=["second", "token", "run", "node", "protocol"],
)
def test_a_second_or_wrong_hello_or_none_is_refused_and_changes_nothing(
    rig: Rig, change: dict[str, object], reason: str
) -> None:
    other = Peer(rig.config.socket)
    answer = other.hello(**change)
    assert answer["type"] == "refused"
    assert reason in answer["reason"]
    other.close()
    garbage = Peer(rig.config.socket)
    garbage.send("shutdown")  # without a hello
    garbage.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert "not a frame" in garbage.take("refused")["reason"]
    garbage.close()
    assert rig.start("true")["type"] == "task_started"


def test_garbage_from_the_coordinator_ends_the_agent_and_its_tasks(rig: Rig) -> None:
    task = rig.start("sleep", "60")["pid"]
    rig.peer.socket.sendall(b"no frame at all")
    assert "not a frame" in rig.peer.take("refused")["reason"]
    rig.end()
    assert not is_alive(task)


def test_no_message_is_lost_or_repeated_after_a_reconnect(new_rig: NewRig) -> None:
    rig = new_rig(lease_s=30)
    code = (
        "import json, os, socket, time\n"
        "line = socket.socket(fileno=int(os.environ['TFCLUSTER_EVENTS_FD']))\n"
        "for step in range(200):\n"
        "    line.send(json.dumps({'type': 'progress', 'step': step}).encode())\n"
        "    time.sleep(0.005)\n"
    )
    rig.start_python(code)
    received = []
    for _ in range(5):
        for _ in range(20):
            received.append(rig.peer.take("task_event")["event"]["step"])
        rig.reconnect()
    while len(received) < 200:
        received.append(rig.peer.take("task_event")["event"]["step"])
    assert received == list(range(200))
    assert rig.exited()["exit_code"] == 0
    rig.shut_down()


def test_a_repeated_order_is_carried_out_once(new_rig: NewRig) -> None:
    rig = new_rig(lease_s=30)
    entry = {"task": "worker:0", "argv": ["echo", "once"], "cwd": "/", "log": str(rig.log())}
    order = rig.peer.session.number({"type": "start", "attempt": 1, "tasks": [entry]})
    rig.peer.socket.sendall(order + order)
    rig.exited()
    rig.reconnect()
    rig.peer.socket.sendall(order)
    rig.start("true", task="worker:1")
    rig.exited("worker:1")
    assert rig.log().read_text() == "once\n"
    rig.shut_down()


def test_logs_are_streamed_by_offset_and_continue_after_a_reconnect(new_rig: NewRig) -> None:
    rig = new_rig(lease_s=30)
    rig.reconnect(stream_logs=True)
    rig.start(
        "sh", "-c", "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo line $i; sleep .005; done"
    )
    name = "worker:0/1"
    for size in (100, 500, 1000):
        while len(rig.peer.logs.get(name, b"")) < size:
            rig.peer.read()
        rig.reconnect(stream_logs=True, log_offsets={name: len(rig.peer.logs[name])})
    rig.exited()
    assert bytes(rig.peer.logs[name]) == rig.log().read_bytes()
    assert bytes(rig.peer.logs[name]).decode().splitlines()[-1] == "line 300"
    rig.shut_down()


def test_an_expired_lease_ends_agent_and_tasks(new_rig: NewRig) -> None:
    rig = new_rig(lease_s=1.0)
    renewed = time.monotonic()
    pid = rig.start("sleep", "60")["pid"]
    rig.peer.close()
    wait_until(lambda: not is_alive(pid))
    assert time.monotonic() - renewed >= 1.0
    wait_until(lambda: not is_alive(rig.pid))


def test_pings_renew_the_lease(new_rig: NewRig) -> None:
    rig = new_rig(lease_s=2.0)
    pid = rig.start("sleep", "60")["pid"]
    enough = time.monotonic() + 3
    while time.monotonic() < enough:
        rig.peer.socket.sendall(protocol.frame(protocol.PING))
        time.sleep(0.02)  # much less than the lease, as this process may have to wait
    assert is_alive(pid)


def test_a_longer_lease_outlasts_the_first(new_rig: NewRig) -> None:
    rig = new_rig(lease_s=1.0)
    pid = rig.start("sleep", "60")["pid"]
    rig.peer.send("set_lease", lease_s=60.0)
    rig.peer.send("take_stacks", tasks=["worker:0"])
    rig.peer.take("stacks")  # it has carried out the order before
    time.sleep(2.0)
    assert is_alive(pid)
    rig.shut_down()


LEASE_S = 3.0


def stop_for_longer_than_its_lease(rig: Rig, *, order: str) -> None:
    """Stop the agent, with frames that it has not read, as if all of its machine were stopped.

    `order`: the shell command of a task that is ordered meanwhile.
    """
    os.kill(rig.pid, signal.SIGSTOP)
    task = {"task": "worker:1", "argv": ["sh", "-c", order], "env": {}, "cwd": str(rig.folder)}
    rig.peer.send("start", attempt=1, tasks=[{**task, "log": str(rig.log("worker:1"))}])
    until = time.monotonic() + LEASE_S + STOPPED_S + 0.5
    while time.monotonic() < until:
        rig.peer.socket.sendall(protocol.frame(protocol.PING))
        time.sleep(0.1)
    os.kill(rig.pid, signal.SIGCONT)


def test_an_agent_that_was_suspended_goes_on_if_its_coordinator_answers(new_rig: NewRig) -> None:
    """The lease is measured by the time in which the agent itself ran."""
    rig = new_rig(lease_s=LEASE_S)
    pid = rig.start("sleep", "60")["pid"]
    stop_for_longer_than_its_lease(rig, order="touch ran")
    assert rig.peer.take("was_stopped")["seconds"] >= STOPPED_S  # `take` acknowledges it
    rig.peer.socket.sendall(protocol.frame(protocol.PING))
    wait_until(lambda: state_of(pid) != "T")
    assert rig.exited("worker:1")["exit_code"] == 0
    assert (rig.folder / "ran").exists(), "an order that came meanwhile is carried out"
    rig.shut_down()
    assert rig.exited()["duration_s"] > LEASE_S + STOPPED_S


def test_an_agent_that_was_stopped_alone_runs_nothing_until_it_ends(new_rig: NewRig) -> None:
    """Its coordinator relies on the end of its tasks, and so does not answer."""
    rig = new_rig(lease_s=LEASE_S)
    pid = rig.start("sleep", "60")["pid"]
    stop_for_longer_than_its_lease(rig, order="touch ran")
    wait_until(lambda: state_of(pid) in ("T", "", "Z"))
    wait_until(lambda: not is_alive(pid) and not is_alive(rig.pid))
    assert not (rig.folder / "ran").exists(), "an order that came meanwhile is not carried out"


def test_without_a_lease_a_closed_connection_ends_agent_and_tasks(rig: Rig) -> None:
    pid = rig.start("sleep", "60")["pid"]
    rig.peer.close()
    wait_until(lambda: not is_alive(pid) and not is_alive(rig.pid))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_agent_ends_all_tasks_and_reports_them(rig: Rig, number: int) -> None:
    rig.start("sleep", "60")
    os.kill(rig.pid, number)
    ending, exited = rig.peer.take("agent_ending"), rig.exited()
    assert (ending["signal"], exited["ended_by"]) == (number, "tfcluster")
    assert ending["n"] < exited["n"], "the report comes before the exits"
    wait_until(lambda: not Path(rig.config.socket).exists())


def test_a_lost_guard_is_reported(rig: Rig) -> None:
    rig.start("sleep", "60")
    os.kill(rig.guard_pid, signal.SIGKILL)
    rig.peer.take("guard_lost")
    assert rig.exited()["ended_by"] == "tfcluster"
    wait_until(lambda: not is_alive(rig.pid))
