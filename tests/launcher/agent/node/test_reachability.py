"""A node checks which hosts it can reach; a host that refuses a connection is reachable."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

from tfcluster.agent.node import probe


def other(host: str, port: int) -> dict[str, object]:
    return {"node": host, "task": "worker:1", "host": host, "port": port}


def run(*others: dict[str, object], timeout_s: float = 2.0) -> list[list[object]]:
    order = json.dumps({"attempt": 3, "others": others, "patience_s": timeout_s})
    argv = [sys.executable, "-I", "-S", probe.__file__, order]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
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
