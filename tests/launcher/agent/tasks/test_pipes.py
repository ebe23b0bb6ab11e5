"""An agent pauses between reads of its tasks' output; orders and exits do not wait."""

from __future__ import annotations

import fcntl
import os
import selectors
from collections.abc import Iterator

import pytest

from tfcluster.agent.tasks.log_streaming import (
    LONGEST_PAUSE_S,
    SHORTEST_PAUSE_S,
    SMALL_READ,
    TRICKLE,
    Pipes,
)

pytestmark = pytest.mark.linux("the size of a pipe")

F_SETPIPE_SZ = 1031
SMALL, MORE, LARGE = b".", b"M", b"L"
"""The bytes that stand for a small read, more than a trickle, and a large read."""


class Loop:
    """An agent's event loop at chosen moments, with a task's pipe and a pipe for orders."""

    def __init__(self) -> None:
        self.now = 0.0
        self.selector = selectors.DefaultSelector()
        self.pipes = Pipes(self.selector, clock=lambda: self.now)
        self.pipe, self.task = os.pipe()
        self.orders_pipe, self.coordinator = os.pipe()
        self.moved: list[int] = []
        """The bytes moved by each read of the task's pipe."""
        self.orders = 0
        self.pipes.add(self.pipe, self._drain)
        self.selector.register(self.orders_pipe, selectors.EVENT_READ, self._on_order)

    def _drain(self) -> int:
        data = os.read(self.pipe, 1 << 20)
        self.moved.append(len(data))
        return SMALL_READ if LARGE in data else TRICKLE if MORE in data else len(data)

    def _on_order(self, _events: int) -> None:
        self.orders += len(os.read(self.orders_pipe, 10))

    def turn(self, at: float) -> None:
        self.now = at
        self.pipes.on_time(at)
        for key, events in self.selector.select(0):
            key.data(events)

    def close(self) -> None:
        for fd in (self.pipe, self.task, self.orders_pipe, self.coordinator):
            os.close(fd)
        self.pipes.close()
        self.selector.close()


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_output_after_a_small_read_is_moved_together_after_a_pause(loop: Loop) -> None:
    os.write(loop.task, SMALL)
    loop.turn(at=0.0)
    for at in (0.001, 0.002, 0.003):
        os.write(loop.task, SMALL)
        loop.turn(at)
    assert loop.moved == [1]
    assert loop.pipes.pause_ends_at == SHORTEST_PAUSE_S
    loop.turn(at=SHORTEST_PAUSE_S)
    assert loop.moved == [1, 3]


def test_orders_and_exits_do_not_wait_for_a_pause(loop: Loop) -> None:
    os.write(loop.task, SMALL)
    loop.turn(at=0.0)
    os.write(loop.coordinator, b"!")
    loop.turn(at=0.001)
    assert loop.orders == 1


def test_a_trickle_is_read_thirty_times_a_second(loop: Loop) -> None:
    for millisecond in range(1000):
        os.write(loop.task, SMALL)
        loop.turn(millisecond / 1000)
    assert 30 <= len(loop.moved) <= 36
    assert loop.pipes.pause_ends_at is not None
    assert loop.pipes.pause_ends_at - loop.now <= LONGEST_PAUSE_S


def test_a_pipe_that_fills_fast_is_read_without_a_pause(loop: Loop) -> None:
    for at in range(5):
        os.write(loop.task, SMALL)
        loop.turn(float(at))
    os.write(loop.task, LARGE)
    loop.turn(at=6.0)
    assert loop.pipes.pause_ends_at is None
    os.write(loop.task, SMALL)
    loop.turn(at=6.0)
    assert loop.pipes.pause_ends_at == 6.0 + SHORTEST_PAUSE_S, "pauses begin short again"


def test_pauses_stay_short_with_more_than_a_trickle(loop: Loop) -> None:
    fcntl.fcntl(loop.task, F_SETPIPE_SZ, 1 << 20)
    loop.pipes.discard(loop.pipe)
    loop.pipes.add(loop.pipe, loop._drain)
    for at in range(5):
        os.write(loop.task, MORE)
        loop.turn(float(at))
        assert loop.pipes.pause_ends_at == at + SHORTEST_PAUSE_S


def test_a_small_pipe_that_fills_is_read_without_a_pause(loop: Loop) -> None:
    loop.pipes.discard(loop.pipe)
    size = fcntl.fcntl(loop.pipe, F_SETPIPE_SZ, 4096)
    loop.pipes.add(loop.pipe, loop._drain)
    for at in range(3):
        os.write(loop.task, SMALL * (size // 2))
        loop.turn(float(at))
        assert loop.pipes.pause_ends_at is None


def test_a_removed_pipe_is_not_read(loop: Loop) -> None:
    os.write(loop.task, SMALL)
    loop.pipes.discard(loop.pipe)
    loop.pipes.discard(loop.pipe)
    loop.turn(at=0.0)
    assert loop.moved == []
