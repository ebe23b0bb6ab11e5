"""The node of a task follows from its address and the backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tfcluster.plans.placement import place_tasks
from tfcluster.spec.model import ClusterSpec

SpecOf = Callable[[dict[str, Any]], ClusterSpec]
OWN = frozenset({"10.0.0.5", "fe80::1", "gpu1"})


@pytest.mark.parametrize(
    ("host", "backend", "expected"),
    [
        ("127.0.0.1", "auto", ("local", "local")),
        ("127.9.9.9", "auto", ("local", "local")),
        ("localhost", "auto", ("local", "local")),
        ("[::1]", "auto", ("local", "local")),
        ("10.0.0.5", "auto", ("local", "local")),
        ("[fe80::1]", "auto", ("local", "local")),
        ("gpu1", "auto", ("local", "local")),
        ("10.0.0.6", "auto", ("10.0.0.6", "ssh")),
        ("gpu2.lab", "auto", ("gpu2.lab", "ssh")),
        ("10.0.0.6", "local", ("local", "local")),
        ("10.0.0.5", "ssh", ("10.0.0.5", "ssh")),
    ],
)
def test_an_address_of_this_machine_is_local_and_another_is_reached_by_ssh(
    spec_of: SpecOf, host: str, backend: str, expected: tuple[str, str]
) -> None:
    sections = {"cluster": {"worker": [f"{host}:2222"]}, "runtime": {"backend": backend}}
    (placed,) = place_tasks(spec_of(sections), OWN)
    assert (placed.node, placed.backend) == expected
