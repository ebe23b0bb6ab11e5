"""Tasks that are early wait until those that they connect to listen."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.integration.live import free_ports

from tfcluster_workers.hooks import first_contact

from .conftest import PYTHONS, Boot

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


def listen_soon(*sockets: socket.socket) -> list[float]:
    """Listen a moment later; return the list that will have the times of it."""
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
    cluster = {"chief": {0: leader}, "worker": {0: other}}
    index = 0
    if job == "worker":
        cluster, index = {"worker": {0: leader, 1: other}}, 1
    moments = listen_soon(bound[0])
    first_contact.await_leader(cluster, "worker", index)
    assert time.monotonic() > moments[0]


def test_the_leader_and_a_cluster_without_one_do_not_wait(
    bound: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_contact, "_await", refuse)
    leader, other = map(address, bound)
    first_contact.await_leader({"worker": {0: leader, 1: other}}, "worker", 0)
    first_contact.await_leader({"chief": {0: leader}, "worker": {0: other}}, "chief", 0)
    first_contact.await_leader({"ps": {0: leader}}, "ps", 0)


def refuse(addresses: list[str]) -> None:
    raise AssertionError(addresses)


def test_a_coordinator_waits_for_all_others(
    bound: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_contact, "_PATIENCE_S", FAR_S)
    worker, ps = map(address, bound)
    cluster = {"chief": {0: "127.0.0.1:1"}, "worker": {0: worker}, "ps": {0: ps}}
    moments = listen_soon(*bound)
    first_contact.await_others(cluster, "chief", 0)
    assert time.monotonic() > moments[1]


def test_tasks_that_do_not_come_are_left_to_tensorflow(
    bound: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_contact, "_PATIENCE_S", 0.1)
    asked = list[float]()
    monkeypatch.setattr(first_contact, "_listens", lambda _, patience_s: asked.append(patience_s))
    cluster = {"worker": {number: f"far:{number}" for number in range(60)}}
    began = time.monotonic()
    first_contact.await_others(cluster, "chief", 0)
    assert time.monotonic() - began >= 0.1
    assert max(asked) <= 0.1


MEETS = """
import os
import tensorflow as tf
from tfcluster_workers.hooks import first_contact

def meet(addresses):
    print("waits for", *addresses, flush=True)
    os._exit(0)

first_contact._await = meet
tf.distribute.MultiWorkerMirroredStrategy()
"""


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("tensorflow", list(PYTHONS))
def test_tensorflow_waits_before_it_connects(tmp_path: Path, boot: Boot, tensorflow: str) -> None:
    (tmp_path / "main.py").write_text(MEETS)
    leader, own = free_ports(2)
    workers = [f"127.0.0.1:{leader}", f"127.0.0.1:{own}"]
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": 1}}
    env = {"TF_CONFIG": json.dumps(config)}
    ended = boot("script", str(tmp_path / "main.py"), python=PYTHONS[tensorflow], env=env)
    assert f"waits for {workers[0]}" in ended.out
