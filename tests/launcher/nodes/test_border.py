"""A node may send messages about its own tasks only, in attempts that were ordered."""

from __future__ import annotations

from typing import Any

import pytest
from tests.launcher.messages import read_report

from tfcluster.agent import catalogue as msg
from tfcluster.agent.protocol import ProtocolError
from tfcluster.nodes.hub import NodeBorder
from tfcluster.wire.messages import Log

TASK = {"task": "worker:0", "attempt": 1}


def border_of(*tasks: str, by_hand: tuple[str, ...] = ()) -> NodeBorder:
    """Return the border of a node that was ordered to start `tasks` and `prepare`."""
    border = NodeBorder(tasks, lambda: 0.0, by_hand)
    names = (*tasks, "prepare")
    orders = [msg.TaskOrder(task=name, argv=["true"], log="log") for name in names]
    border.note_order(msg.Start(attempt=1, tasks=orders))
    return border


OTHER, OLD = "not its task", "attempt 2, which was never started"


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"type": "task_started", "task": "worker:1", "attempt": 1, "pid": 1}, OTHER),
        ({"type": "ports_held", "ports": {"worker:0": 1, "worker:1": 2}}, OTHER),
        ({"type": "unkillable", "task": "worker:1", "pids": [1]}, OTHER),
        ({"type": "port_taken", "task": "worker:1", "host": "h", "port": 1}, OTHER),
        ({"type": "task_event", "task": "no task", "attempt": 1, "event": {}}, OTHER),
        (Log(name="worker:1/1", offset=0, data=b""), OTHER),
        (Log(name="../../etc/passwd", offset=0, data=b""), OTHER),
        ({"type": "task_started", **TASK, "attempt": 2, "pid": 1}, OLD),
        ({"type": "unkillable", **TASK, "attempt": 2, "pids": [1]}, OLD),
    ],
    ids=repr,
)
def test_a_message_about_a_task_of_another_node_or_attempt_is_refused(
    message: Any, why: str
) -> None:
    with pytest.raises(ProtocolError, match=why):
        border_of("worker:0").check(message if isinstance(message, Log) else read_report(message))


def test_a_message_about_a_task_of_the_node_is_accepted() -> None:
    border = border_of("worker:0")
    border.check(Log(name="worker:0/1", offset=0, data=b""))
    for message in (
        {"type": "task_started", **TASK, "pid": 1},
        {"type": "task_started", "task": "prepare", "attempt": 1, "pid": 1},
        {"type": "unkillable", "task": None, "pids": [4]},
        {"type": "ports_held", "ports": {"worker:0": 2222}},
        {"type": "bye"},
    ):
        border.check(read_report(message))


def test_ports_of_all_tasks_of_the_node_are_required() -> None:
    with pytest.raises(ProtocolError, match="without worker:1"):
        border_of("worker:0", "worker:1").check(msg.PortsHeld(ports={"worker:0": 2222}))


def test_only_the_port_of_a_task_started_by_hand_may_be_reported() -> None:
    border = border_of("worker:0", by_hand=("worker:1",))
    border.check(msg.PortsHeld(ports={"worker:0": 2222, "worker:1": 2223}))
    with pytest.raises(ProtocolError, match="without worker:1"):
        border.check(msg.PortsHeld(ports={"worker:0": 2222}))
    with pytest.raises(ProtocolError, match="not its task"):
        border.check(msg.TaskStarted(task="worker:1", attempt=1, pid=1))
