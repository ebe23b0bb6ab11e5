"""The plan has a line that names the run's open ports and the machines that can reach them."""

from __future__ import annotations

from dataclasses import replace

from tfcluster.ui.plan_view import describe_ports

from .test_panels import plan


def test_open_ports_on_the_host_s_network_are_named() -> None:
    assert describe_ports(plan(), [0, 0]).startswith("2 ports, chosen at start: TensorFlow listens")
    assert describe_ports(plan(), [2223, 2222]).startswith(
        "2222, 2223: TensorFlow listens on every"
    )
    assert describe_ports(plan(), range(3000, 3100)).startswith("100 ports, 3000 to 3099: ")


def test_a_private_network_opens_no_port() -> None:
    made = plan()
    private = replace(made, nodes=tuple(replace(n, network="private") for n in made.nodes))
    assert describe_ports(private, [2222, 2223]).startswith("none: ")
