"""Tasks that are early wait until those that they connect to listen."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tfcluster_workers.hooks import first_contact

FAR_S = 600.0


@pytest.fixture
def bound() -> Iterator[list[socket.socket]]:
    """Two ports that are taken, but not listened on."""
    with closing(socket.socket()) as first, closing(socket.socket()) as second:
        for each in (first, second):
            each.bind(("127.0.0.1", 0))
        yield [first, second]


def address(bound: socket.socket) -> str:
    return f"127.0.0.1:{bound.getsockname()[1]}"


def become(
    monkeypatch: pytest.MonkeyPatch, cluster: dict[str, list[str]], job: str, index: int = 0
) -> None:
    config = {"cluster": cluster, "task": {"type": job, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def listen_soon(*sockets: socket.socket) -> list[float]:
    """Listen a moment later; return the list that will have the time of it."""
    moments = list[float]()

    def listen() -> None:
        for each in sockets:
            time.sleep(0.1)
            moments.append(time.monotonic())
            each.listen()

    threading.Thread(target=listen).start()
    return moments


@pytest.mark.parametrize("job", ["chief", "worker"])
def test_a_worker_waits_until_the_leader_listens(
    bound: list[socket.socket], monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    monkeypatch.setattr(first_contact, "_PATIENCE_S", FAR_S)
    leader, other = map(address, bound)
    cluster = {"worker": [leader, other]} if job == "worker" else {job: [leader], "worker": [other]}
    become(monkeypatch, cluster, "worker", 1 if job == "worker" else 0)
    moments = listen_soon(bound[0])
    first_contact.await_leader()
    assert time.monotonic() > moments[0]


@pytest.mark.parametrize(("job", "index"), [("worker", 0), ("evaluator", 0), ("ps", 0)])
def test_the_leader_and_tasks_without_collectives_do_not_wait(
    bound: list[socket.socket], monkeypatch: pytest.MonkeyPatch, job: str, index: int
) -> None:
    monkeypatch.setattr(first_contact, "_await", refuse)
    become(monkeypatch, {"worker": [*map(address, bound)]}, job, index)
    first_contact.await_leader()


def refuse(addresses: list[str]) -> None:
    assert not addresses


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cluster": {}, "task": null}', '{"task": {}}'])
def test_a_damaged_cluster_is_left_to_tensorflow(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(first_contact, "_await", refuse)
    monkeypatch.setenv("TF_CONFIG", text)
    first_contact.await_leader()
    first_contact.await_servers()


def test_a_coordinator_waits_for_all_servers(
    bound: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_contact, "_PATIENCE_S", FAR_S)
    worker, ps = map(address, bound)
    become(monkeypatch, {"chief": ["127.0.0.1:1"], "worker": [worker], "ps": [ps]}, "chief")
    moments = listen_soon(*bound)
    first_contact.await_servers()
    assert time.monotonic() > moments[1]


def test_a_leader_that_does_not_come_is_left_to_tensorflow(
    bound: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_contact, "_PATIENCE_S", 0.1)
    become(monkeypatch, {"worker": [*map(address, bound)]}, "worker", 1)
    began = time.monotonic()
    first_contact.await_leader()
    assert time.monotonic() - began >= 0.1
