"""The addresses that the nodes report replace those of the plan."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tests.launcher.nodes.test_remote_resources import plan_of

from tfcluster.agent import catalogue as msg
from tfcluster.errors import SetupError, UsageError
from tfcluster.nodes.hub import Hub
from tfcluster.nodes.orders import at_interface, hold_ports, port_error
from tfcluster.plans.placement import exclude_tasks
from tfcluster.plans.plan import TaskId

HOSTS = ["10.0.0.1:0", "10.0.0.2:0"]


class Answering:
    """A hub whose nodes have answered."""

    def __init__(self, **held: msg.PortsHeld) -> None:
        self.held = {f"10.0.0.{name[1:]}": answer for name, answer in held.items()}

    def answer(self, node: str, *_kinds: Any) -> msg.PortsHeld | None:
        return self.held.get(node)


def hub(**held: msg.PortsHeld) -> Hub:
    return cast("Hub", Answering(**held))


def test_tasks_get_the_addresses_that_their_nodes_report() -> None:
    plan = plan_of(HOSTS, runtime={"interface": "ib0", "ports": "60001-63000"})
    order = hold_ports(plan, "10.0.0.1")
    assert (order.interface, order.among) == ("ib0", [60001, 63000])
    first = msg.PortsHeld(ports={}, host="10.20.0.1")
    second = msg.PortsHeld(ports={}, host="[2001:db8::2]")
    found = at_interface(plan, hub(n1=first, n2=second), ["10.0.0.1", "10.0.0.2", "lost"])
    assert [task.host for task in found.tasks] == ["10.20.0.1", "[2001:db8::2]"]


def test_a_node_without_the_interface_is_named_with_those_that_it_has() -> None:
    plan = plan_of(HOSTS, runtime={"interface": "ib0"})
    held = msg.PortsHeld(ports={}, interfaces=["lo 127.0.0.1", "eth0 10.0.0.1"])
    with pytest.raises(SetupError) as refused:
        at_interface(plan, hub(n1=held), ["10.0.0.1"])
    assert refused.value.message == (
        "10.0.0.1 has no interface or address ib0; it has lo 127.0.0.1, eth0 10.0.0.1"
    )


def test_without_other_hosts_no_interface_is_asked_for_and_that_is_said() -> None:
    plan = plan_of(["127.0.0.1:0"], runtime={"interface": "ib0"})
    assert hold_ports(plan, "local").interface is None
    assert "runtime.interface has no effect without other hosts or nodes of Slurm" in plan.notes


def test_containers_have_all_ports_to_themselves() -> None:
    plan = plan_of(2, runtime={"backend": "docker", "ports": "60001-63000"})
    assert hold_ports(plan, plan.nodes[0].name).among == []
    assert any(note.startswith("runtime.ports has no effect") for note in plan.notes)


def test_a_start_of_several_parts_writes_the_addresses_itself() -> None:
    plan = plan_of(HOSTS, runtime={"interface": "ib0"})
    with pytest.raises(UsageError, match="needs one start of all tasks"):
        exclude_tasks(plan, [TaskId("worker", 1)])


def test_a_range_without_a_free_port_is_said() -> None:
    error = port_error(msg.PortTaken(task="worker:0", host="10.0.0.1", port=0))
    assert error.message == "no port of runtime.ports is free: 10.0.0.1 (worker:0)"
