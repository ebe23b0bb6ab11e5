"""The one loop of a run: each turn sends queued orders, handles inputs and does what is due."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, TypeVar

from tfcluster.nodes.hub import Hub
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.supervision.supervisor import Supervisor
from tfcluster.wire.link import SECOND_LOOK_S

T = TypeVar("T")

_LATE_S: Final = 2.0
"""A turn that is so late means that this process was stopped (Ctrl-Z): messages that came
meanwhile are read before deadlines are checked."""


class RunOver(Exception):
    """The run has its outcome, so waiting is pointless."""


class Loop:
    """The loop of a run. Everything that waits does so here, while inputs are handled."""

    def __init__(
        self, hub: Hub, supervisor: Supervisor, run_writer: RunWriter, carry_out: Callable[[], None]
    ) -> None:
        """Prepare the loop; `carry_out` does what the supervisor has ordered."""
        self._hub, self._supervisor, self._run_writer = hub, supervisor, run_writer
        self._carry_out = carry_out

    def now(self) -> float:
        """Return the time in seconds on the clock that supervision uses."""
        return asyncio.get_running_loop().time()

    async def until(self, condition: Callable[[], bool], *, at: float | None = None) -> None:
        """Handle inputs until `condition` holds; it is also checked at the moment `at`.

        Raises RunOver when the run has its outcome.
        """
        while not condition():
            self._check()
            await self._turn(at)
        self._check()

    async def pause(self, until: float) -> None:
        """Handle inputs until the moment `until`; raises RunOver."""
        await self.until(lambda: self.now() >= until, at=until)

    async def run_alongside(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` while inputs are handled, and return its result.

        Raises what `work` raises, and RunOver, which cancels it.
        """
        async with self._running(work) as task:
            await self.until(task.done)
            return task.result()

    async def run_to_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` of a run that is over to its end, and return its result.

        Meanwhile messages are handled and the state is saved, but no orders are sent.
        """
        async with self._running(work) as task:
            while not task.done():
                self._run_writer.keep_up()
                await self._hub.turn(self._run_writer.wake_s)
            return task.result()

    @contextlib.asynccontextmanager
    async def _running(self, work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
        """Run `work` until the block ends; the end of `work` wakes the loop."""
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._hub.put(lambda: None))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])

    def _check(self) -> None:
        if self._supervisor.outcome is not None:
            raise RunOver

    async def _turn(self, at: float | None) -> None:
        await self._hub.flush()
        self._run_writer.keep_up()
        due = (at, self._supervisor.wake_at)
        waits = [max(0.0, moment - self.now()) for moment in due if moment is not None]
        if self._run_writer.wake_s is not None:
            waits.append(self._run_writer.wake_s)
        wait_s = min(waits, default=None)
        asleep_until = None if wait_s is None else self.now() + wait_s + _LATE_S
        await self._hub.turn(wait_s)
        if asleep_until is not None and self.now() > asleep_until:
            await asyncio.sleep(SECOND_LOOK_S)
            await self._hub.turn(0)
        self._supervisor.tick(self.now())
        self._carry_out()
