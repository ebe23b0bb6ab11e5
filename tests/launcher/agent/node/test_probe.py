"""The probes of several nodes find each other, in whatever order they start."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tfcluster.agent.node import probe


@pytest.fixture
def port() -> Iterator[int]:
    """Yield a port that has no listener and that no other process gets."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        number: int = holder.getsockname()[1]
        yield number


def dial(port: int, timeout_s: float) -> str:
    other = {"node": "b", "host": "127.0.0.1", "port": port}
    return probe.dial(probe.Rendezvous("run", "a"), other, time.monotonic() + timeout_s)


def test_a_node_whose_probe_starts_late_is_waited_for(port: int) -> None:
    later = threading.Timer(0.5, probe.Rendezvous("run", "b").listen, (port, ["a"]))
    later.start()
    assert dial(port, 0.1) == ""
    later.join()


def test_a_node_whose_probe_never_starts_is_unreachable(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_LATE_S", 0.3)
    assert dial(port, 0.1) == "Connection refused"


def test_a_node_that_drops_packets_gets_no_extra_time(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drop(*_: object) -> socket.socket:
        time.sleep(0.1)
        raise TimeoutError("timed out")

    monkeypatch.setattr(probe, "_LATE_S", 300.0)
    monkeypatch.setattr(socket, "create_connection", drop)
    assert dial(port, 0.2) == "timed out"


def test_a_probe_waits_until_every_node_has_connected_to_every_port(port: int) -> None:
    rendezvous = probe.Rendezvous("run", "b")
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        ports = (port, holder.getsockname()[1])
        for number in ports:
            rendezvous.listen(number, ["a"])
        waits = threading.Thread(target=rendezvous.wait_for_all, args=(time.monotonic() + 60,))
        waits.start()
        assert dial(ports[0], 5) == ""
        waits.join(0.3)
        assert waits.is_alive()
        assert dial(ports[1], 5) == ""
        waits.join(30)
        assert not waits.is_alive()


@pytest.mark.parametrize(
    ("error", "address", "is_wrong"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), None, True),
        (ConnectionRefusedError(111, "Connection refused"), "127.0.1.1", True),
        (ConnectionRefusedError(111, "Connection refused"), "10.0.0.2", False),
    ],
)
def test_a_name_that_is_unknown_or_the_nodes_own_is_noted(
    error: OSError, address: str | None, is_wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> socket.socket:
        raise error

    def look_up(*_: object, **__: object) -> list[object]:
        if address is None:
            raise error
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]

    monkeypatch.setattr(probe, "_LATE_S", 0.0)
    monkeypatch.setattr(socket, "create_connection", fail)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    rendezvous = probe.Rendezvous("run", "a")
    other = {"node": "b", "host": "b", "port": 1}
    why = probe.dial(rendezvous, other, time.monotonic() + 0.1)
    assert why.startswith(str(error.strerror))
    assert rendezvous.wrong_names == ({"b"} if is_wrong else set())
