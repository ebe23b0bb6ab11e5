"""The node of a task follows from its address and the backend."""

from __future__ import annotations

import pytest

from tfcluster.plan.placement import Place, place

OWN = frozenset({"10.0.0.5", "fe80::1", "gpu1"})


@pytest.mark.parametrize(
    ("host", "backend", "expected"),
    [
        ("127.0.0.1", "auto", Place("local", "local")),
        ("127.9.9.9", "auto", Place("local", "local")),
        ("localhost", "auto", Place("local", "local")),
        ("[::1]", "auto", Place("local", "local")),
        ("10.0.0.5", "auto", Place("local", "local")),
        ("[fe80::1]", "auto", Place("local", "local")),
        ("gpu1", "auto", Place("local", "local")),
        ("10.0.0.6", "auto", Place("10.0.0.6", "ssh")),
        ("gpu2.lab", "auto", Place("gpu2.lab", "ssh")),
        ("10.0.0.6", "local", Place("local", "local")),
        ("10.0.0.5", "ssh", Place("10.0.0.5", "ssh")),
    ],
)
def test_an_address_of_this_machine_is_local_and_another_is_reached_by_ssh(
    host: str, backend: str, expected: Place
) -> None:
    assert place(host, backend=backend, local_addresses=OWN) == expected
