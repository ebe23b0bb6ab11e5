"""The address by which the libraries beside TensorFlow let other tasks reach this one."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from tfcluster_workers.hooks import jax_cluster

pytestmark = pytest.mark.linux("all of 127.0.0.0/8 is this machine")


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (["127.0.0.1:1", "127.0.0.1:2"], "127.0.0.1"),
        (["gpu1:1", "gpu1:2"], "gpu1"),
        (["gpu1:1", "127.0.0.2:1"], "127.0.0.1"),
        (["gpu9:1", "gpu1:1"], ""),
    ],
    ids=["an address", "one machine", "Debian's name of itself", "another machine"],
)
def test_a_name_that_is_loopback_here_is_not_given_to_other_hosts(
    monkeypatch: pytest.MonkeyPatch, cluster: list[str], expected: str
) -> None:
    look_up = socket.getaddrinfo
    hosts = {"gpu1": "127.0.1.1", "gpu9": "192.0.2.99"}

    def found(host: str, *args: Any, **kwargs: Any) -> Any:
        return look_up(hosts.get(host, host), *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    config = {"cluster": {"worker": cluster}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert jax_cluster.own_host() == expected
