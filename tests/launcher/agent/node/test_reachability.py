"""A node checks which hosts it can reach; a host that refuses a connection is reachable."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tfcluster.agent.node import probe


def other(host: str, port: int) -> dict[str, object]:
    return {"node": host, "task": "worker:1", "host": host, "port": port}


def run(*others: dict[str, object], timeout_s: float = 2.0) -> list[list[object]]:
    order = json.dumps({"attempt": 3, "others": others, "patience_s": timeout_s})
    argv = [sys.executable, "-I", "-S", probe.__file__, order]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=True)
    report = json.loads(done.stdout)
    assert report["attempt"] == 3
    found: list[list[object]] = report["cut"]
    return found


def test_listening_and_ended_tasks_are_both_reachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        ports = [listener.getsockname()[1], closed.getsockname()[1]]
        assert run(*(other("127.0.0.1", port) for port in ports), timeout_s=5.0) == []


def test_a_host_that_does_not_answer_is_reported_with_the_reason() -> None:
    # A listener whose queue is full does not answer, like a host behind a firewall.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            (row,) = run(other("127.0.0.1", port))
    assert row[:4] == ["127.0.0.1", "worker:1", "127.0.0.1", port]
    assert row[4] == "timed out"


def test_an_unknown_host_name_is_reported_with_the_resolver_s_error() -> None:
    (row,) = run(other("no-such-host.invalid", 2222))
    assert row[4]


def test_a_name_that_is_the_node_itself_is_explained() -> None:
    """On Debian a copied /etc/hosts gives every host the name of one, at 127.0.1.1."""
    here = probe.Rendezvous("run", "n1")
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("", 0))
        port = held.getsockname()[1]
        here.listen(port, [])
        hosts, until = ("localhost", "127.0.0.1"), time.monotonic() + 5
        with ThreadPoolExecutor() as threads:
            tries = [
                threads.submit(probe.dial, here, {**other(host, port), "node": "n2"}, until)
                for host in hosts
            ]
        why = {host: tried.result() for host, tried in zip(hosts, tries, strict=True)}
    assert why["localhost"].startswith("node n1 answers there; localhost is ")
    assert why["localhost"].endswith(" on this node")
    assert why["127.0.0.1"] == "node n1 answers there"
