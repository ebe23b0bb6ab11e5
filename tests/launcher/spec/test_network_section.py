"""`runtime.network` takes rates and times in tc's units, and refuses what no network can be."""

from __future__ import annotations

from typing import Any

import pytest

from tfcluster.errors import SpecError
from tfcluster.spec import load as spec_load
from tfcluster.spec.network import Network
from tfcluster.spec.sections import Runtime


def load(network: Any, **runtime: Any) -> Runtime:
    spec = {"cluster": {"worker": 2}, "job": {"script": "a.py"}}
    spec |= {"runtime": {"network": network, **runtime}}
    return spec_load.load(spec).spec.runtime


@pytest.mark.parametrize(
    ("written", "bits_per_s"),
    [
        ("100mbit", 100e6), ("1gbit", 1e9), ("2.5Gbit", 2.5e9), ("25 gbit/s", 25e9),
        ("10kbps", None), ("64kbit", 64e3), ("10000bit", 1e4), (1e9, 1e9), (20000, 2e4),
    ],
)  # fmt: skip
def test_rates_are_bits_per_second(written: Any, bits_per_s: float | None) -> None:
    if bits_per_s is None:
        with pytest.raises(SpecError, match="is not a rate"):
            load({"rate": written})
        return
    network = load({"rate": written}).network
    assert isinstance(network, Network)
    assert network.to_json() == {"rate": bits_per_s}


def test_a_shape_has_seconds_and_percent() -> None:
    shape = {"delay": "2ms", "jitter": "500ms", "loss": "0.1%"}
    link = {"between": ["worker:0", "worker:1"], "rate": "10gbit"}
    network = load({"mode": "private", **shape, "links": [link]}).network
    assert isinstance(network, Network)
    assert network.to_json() == {"delay": 0.002, "jitter": 0.5, "loss": 0.1}
    assert network.links[0].to_json() == {"rate": 1e10}
    assert network.links[0].between == ("worker:0", "worker:1")


@pytest.mark.parametrize(
    ("backend", "network", "chosen"),
    [
        ("auto", {}, "simulated"),
        ("local", {"rate": "1gbit"}, "simulated"),
        ("simulated", "host", "simulated"),
        ("local", "private", "local"),
        ("auto", "private", "auto"),
    ],
)
def test_an_object_chooses_the_simulated_network(
    backend: str, network: object, chosen: str
) -> None:
    assert load(network, backend=backend).backend == chosen


@pytest.mark.parametrize(
    ("network", "runtime", "message"),
    [
        ("public", {}, "public"),
        ({"rate": "fast"}, {}, "'fast' is not a rate"),
        ({"rate": 10}, {}, "between 8 kbit and 1 tbit"),
        ({"rate": True}, {}, "expected a rate"),
        ({"loss": "101%"}, {}, "between 0 and 100"),
        ({"loss": "much"}, {}, "'much' is not a percentage"),
        ({"jitter": "1ms"}, {}, "jitter needs a delay"),
        ({"speed": "1gbit"}, {}, "unknown key 'speed'"),
        ({"links": [{"between": ["worker:0", "worker:2"]}]}, {}, "no task worker:2"),
        ({"links": [{"between": ["worker:0", "worker:0"]}]}, {}, "a link of a task with itself"),
        ({"links": [{"between": ["worker:0"]}]}, {}, "between"),
        ({"links": [{"between": ["a", "b"]}]}, {}, "'a' is not a task"),
        ({"rate": "1gbit"}, {"backend": "docker"}, "docker has its own network"),
    ],
)
def test_what_no_network_can_be_is_refused(
    network: object, runtime: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        load(network, **runtime)


def test_the_nodes_of_a_simulated_network_have_no_addresses_of_other_machines() -> None:
    spec = {
        "cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]},
        "job": {"script": "a.py"},
        "runtime": {"network": {"rate": "1gbit"}},
    }
    with pytest.raises(SpecError, match="another machine's address; a simulated network is on"):
        spec_load.load(spec)
