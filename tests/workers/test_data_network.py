"""A missing network is reported within seconds: the hosts are checked before a download."""

from __future__ import annotations

import socket

import pytest

from tfcluster_workers.data import network

MNIST = "https://storage.example/mnist/train.gz"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def refuse(address: network.Address, timeout_s: float) -> None:
    raise OSError(113, f"No route to {address[0]}")


def test_an_unreachable_host_is_named_with_the_reason() -> None:
    with pytest.raises(network.UnreachableError, match=r"storage\.example cannot be reached"):
        network.require([MNIST], connect=refuse)


def test_one_reachable_host_is_enough() -> None:
    def connect(address: network.Address, timeout_s: float) -> None:
        if address[0] != "mirror.example":
            refuse(address, timeout_s)

    network.require([MNIST, "http://mirror.example/train.gz"], connect=connect)


def test_no_downloads_need_no_network() -> None:
    network.require([], connect=refuse)
    network.require(["/mnt/data/train.gz"], connect=refuse)


def test_many_hosts_are_checked_with_few_short_attempts() -> None:
    time_outs: list[float] = []

    def silent(address: network.Address, timeout_s: float) -> None:
        time_outs.append(timeout_s)
        raise TimeoutError("timed out")

    with pytest.raises(network.UnreachableError, match="timed out"):
        network.require([f"https://host{n}.example/x" for n in range(50)], connect=silent)
    assert len(time_outs) == network.MAX_HOSTS
    assert sum(time_outs) <= network.MAX_HOSTS * network.CONNECT_S


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        ({}, ("storage.example", 443)),
        ({"https_proxy": "http://proxy.example:3128"}, ("proxy.example", 3128)),
        ({"https_proxy": "proxy.example:3128"}, ("proxy.example", 3128)),
        ({"http_proxy": "http://proxy.example:3128"}, ("storage.example", 443)),
        (
            {"https_proxy": "http://proxy.example:3128", "no_proxy": "storage.example"},
            ("storage.example", 443),
        ),
    ],
)
def test_behind_a_proxy_the_proxy_is_checked(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], address: network.Address
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert network.connect_address(MNIST) == address


def test_a_listening_host_is_reached_and_another_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        network.require([f"http://127.0.0.1:{port}/x"])
    with pytest.raises(network.UnreachableError, match="Connection refused"):
        network.require([f"http://127.0.0.1:{port}/x"])
