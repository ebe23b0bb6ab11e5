"""A node finds its address on the network that the spec names."""

from __future__ import annotations

import pytest
from tests.launcher.agent.conftest import Rig

from tfcluster.agent.net.interfaces import find_host, find_interfaces

FOUND = [
    ("lo", "127.0.0.1"),
    ("eth0", "2001:db8::7"),
    ("eth0", "10.0.0.7"),
    ("ib0", "10.20.0.7"),
    ("ib1", "2001:db8:1::7"),
]


@pytest.mark.parametrize(
    ("wanted", "host"),
    [
        ("ib0", "10.20.0.7"),
        ("eth0", "10.0.0.7"),
        ("ib1", "[2001:db8:1::7]"),
        ("ib", None),
        ("10.20.0.0/16", "10.20.0.7"),
        ("10.20.0.1/16", "10.20.0.7"),
        ("2001:db8::/64", "[2001:db8::7]"),
        ("192.168.0.0/16", None),
        ("{node}-ib", "gpu7-ib"),
        ("ib-{node}.cluster", "ib-gpu7.cluster"),
    ],
)
def test_a_network_is_named_by_interface_subnet_or_pattern(wanted: str, host: str | None) -> None:
    assert find_host(wanted, FOUND, "gpu7.example.org") == host


def test_the_interfaces_of_this_machine_are_listed() -> None:
    assert ("lo", "127.0.0.1") in find_interfaces()


@pytest.mark.parametrize("wanted", ["lo", "127.0.0.0/8"])
@pytest.mark.linux("the stand-in for macOS has Linux's structures of addresses")
def test_the_agent_answers_with_its_address(rig: Rig, wanted: str) -> None:
    rig.peer.send("hold_ports", ports=[], interface=wanted)
    assert rig.peer.take("ports_held")["host"] == "127.0.0.1"


def test_the_agent_names_its_interfaces_where_the_wanted_one_is_missing(rig: Rig) -> None:
    rig.peer.send("hold_ports", ports=[], interface="ib7")
    held = rig.peer.take("ports_held")
    assert "host" not in held
    assert "lo 127.0.0.1" in held["interfaces"]
