"""A warm agent listens alone, for as long as it waits."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfcluster.agent.agent_config import WarmStay
from tfcluster.agent.guard import Recorder
from tfcluster.agent.warm import AnotherWaits, WarmWait


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """A recorder whose guard reads nothing."""
    guard, agent = os.pipe()
    yield Recorder(agent, os.getpid())
    os.close(guard)
    os.close(agent)


def wait_at(path: Path, recorder: Recorder) -> WarmWait:
    stay = WarmStay(socket=str(path), seconds=0.0, about="")
    return WarmWait(stay, recorder, wakes=[], signals=-1)


@pytest.mark.parametrize("connections", [0, 100], ids=["", "with a full queue"])
def test_of_two_agents_the_second_does_not_wait(
    tmp_path: Path, recorder: Recorder, connections: int
) -> None:
    """Also if the first one was stopped, and nobody takes its clients."""
    path = tmp_path / "private" / "warm.sock"
    first = wait_at(path, recorder)
    clients = [socket.socket(socket.AF_UNIX) for _ in range(connections)]
    for client in clients:
        client.setblocking(False)
        client.connect_ex(str(path))
    with pytest.raises(AnotherWaits):
        wait_at(path, recorder)
    assert first.wait() is None
    assert not path.exists()
    for client in clients:
        client.close()
    assert wait_at(path, recorder).wait() is None
