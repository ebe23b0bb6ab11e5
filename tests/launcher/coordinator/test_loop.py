"""The clock of a coordinator stands still while its process is stopped."""

from __future__ import annotations

import asyncio
import time

from tfcluster.agent.stop_clock import STOPPED_S, StopClock
from tfcluster.coordinator.loop import RunLoop


def test_a_loop_was_stopped_if_it_did_not_run_for_longer_than_it_wanted_to_wait() -> None:
    now = 100.0
    clock = StopClock(lambda: now)
    now += 5
    clock.note_turn(5.0)
    assert clock.stopped_s == 0, "it has waited"
    now += 2 + STOPPED_S
    clock.note_turn(2.0)
    clock.note_turn()
    assert clock.stopped_s == 2 + STOPPED_S
    now += 90
    clock.note_turn(None)
    assert clock.stopped_s == 2 + STOPPED_S, "it may have waited as long"
    now += 90
    clock.note_turn()
    assert clock.stopped_s == 2 + STOPPED_S + 90


def test_no_deadline_passes_while_the_process_is_stopped() -> None:
    stops: list[float] = []

    async def run() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, RunLoop)
        loop.on_stopped = stops.append
        async with asyncio.timeout(STOPPED_S):
            began = loop.time()
            await asyncio.sleep(0)
            time.sleep(STOPPED_S + 0.5)  # noqa: ASYNC251, nothing else runs meanwhile
            await asyncio.sleep(0.01)
            return loop.time() - began

    with asyncio.Runner(loop_factory=RunLoop) as runner:
        assert runner.run(run()) < STOPPED_S
    assert len(stops) == 1
    assert stops[0] >= STOPPED_S
