"""An agent limits the reports of tasks and unknown connections, and reports any excess."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tfcluster.agent import budgets, protocol
from tfcluster.agent.agent_config import AgentConfig
from tfcluster.agent.budgets import Allowance
from tfcluster.agent.net.coordinator_link import CoordinatorLink

from .conftest import Peer, Rig

FLOOD = """
import json, os, socket, time
line = socket.socket(fileno=int(os.environ["TFCLUSTER_EVENTS_FD"]))
note = json.dumps({"type": "note", "message": "x" * 60_000}).encode()
sent, until = 0, time.monotonic() + 1
while time.monotonic() < until:
    try:
        line.send(note, socket.MSG_DONTWAIT)
        sent += 1
    except BlockingIOError:
        time.sleep(0.001)
print(sent)
line.send(json.dumps({"type": "task_error", "exception": "E", "message": "the end"}).encode())
"""
"""A task that sends notes for a second as fast as possible, then reports an error."""


def memory_of(pid: int) -> int:
    """Return the peak memory of a process in bytes."""
    facts = Path(f"/proc/{pid}/status").read_text()
    return int(facts.partition("VmHWM:")[2].split()[0]) * 1024


def test_reports_of_a_flooding_task_are_dropped_except_the_last_error(rig: Rig) -> None:
    """A second of this flood was 150 MB for the coordinator before there were budgets."""
    rig.start_python(FLOOD)
    assert rig.exited()["exit_code"] == 0, "the task never waits for the agent"
    events = [m["event"] for m in rig.peer.messages if m["type"] == "task_event"]
    taken = sum(len(json.dumps(event)) for event in events)
    assert taken < budgets.REPORT_BYTES_AT_ONCE + 10 * budgets.REPORT_BYTES_PER_S
    assert events[-1] == {"type": "task_error", "exception": "E", "message": "the end"}
    counts = [m["count"] for m in rig.peer.messages if m["type"] == "reports_dropped"]
    sent = int(rig.log().read_text())
    assert counts == [1, sent - len(events) + 1]


@pytest.mark.linux("/proc")
def test_connections_without_a_hello_use_little_memory_and_block_no_other(rig: Rig) -> None:
    before = memory_of(rig.pid)
    incomplete_hello = protocol.control_frame({"type": "hello", "x": "x" * (900 << 10)})[:-100]
    others = []
    with contextlib.ExitStack() as closing:
        for _ in range(3 * budgets.PENDING_CONNECTIONS):
            peer = Peer(rig.config.socket)
            closing.callback(peer.close)
            others.append(peer)
            with contextlib.suppress(ConnectionError):
                peer.socket.sendall(incomplete_hello)
        assert rig.start("true")["type"] == "task_started", "the agent serves its coordinator"
        rig.exited()
        assert "without a hello" in others[0].take("refused")["reason"]
        assert memory_of(rig.pid) < before + (budgets.PENDING_CONNECTIONS + 4) * budgets.HELLO_BYTES
        huge = Peer(rig.config.socket)
        closing.callback(huge.close)
        with contextlib.suppress(ConnectionError):
            huge.socket.sendall(protocol.frame(protocol.CONTROL, bytes(2 << 20))[: 1 << 18])
        assert "not a frame" in huge.take("refused")["reason"]


def test_a_connection_without_a_hello_is_closed_after_some_seconds(folder: Path) -> None:
    ignore: Any = lambda *_: None  # noqa: E731
    recorder = SimpleNamespace(pid=1, add_file=ignore)
    with selectors.DefaultSelector() as selector:
        path = str(folder / "private" / "agent.sock")
        line = CoordinatorLink(
            AgentConfig(run_id="r", node="n", token="t", socket=path),
            cast("Any", recorder),
            selector,
            *[ignore] * 5,
        )
        with socket.socket(socket.AF_UNIX) as other:
            other.settimeout(20)
            other.connect(path)
            line._accept(selectors.EVENT_READ)
            due = line.deadline()
            assert due is not None
            assert due <= time.monotonic() + budgets.HELLO_S
            line.on_time(due + 1)
            received = b""
            while data := other.recv(1 << 16):
                received += data
            assert b"no hello within 10 s" in received
        line.close()


@pytest.mark.parametrize(("spent", "wait_s"), [(0, 0.0), (9, 0.0), (10, 0.0), (30, 4.0)])
def test_an_allowance_refills(spent: int, wait_s: float) -> None:
    allowance = Allowance(burst=10, per_s=5, now=100.0)
    allowance.spend(spent, 100.0)
    assert allowance.wait_s(100.0) == wait_s
    assert allowance.wait_s(100.0 + wait_s) == 0.0
    allowance.spend(10, 1e6)
    assert allowance.wait_s(1e6) == 0.0, "never more than its burst"
    allowance.spend(1, 1e6)
    assert allowance.wait_s(1e6) == 0.2
