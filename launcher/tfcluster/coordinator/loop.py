"""The turns of a run's one loop: what waits is sent, inputs are handled, what is due is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from tfcluster.nodes.hub import Hub
from tfcluster.rundir.journal import Journal
from tfcluster.supervision.supervisor import Supervisor
from tfcluster.wire.link import SECOND_LOOK_S

T = TypeVar("T")


_LATE_S: Final = 2.0
"""Who is so late was stopped (Ctrl-Z): what was said meanwhile is read before it is judged."""


class Over(Exception):
    """The run has its outcome: nothing more is to be waited for."""


class Loop:
    """Everything that waits does it here, so that nothing is deaf while it waits."""

    def __init__(
        self,
        hub: Hub,
        supervisor: Supervisor,
        journal: Journal,
        carry_out: Callable[[], None],
    ) -> None:
        """`carry_out` does what the supervisor has ordered."""
        self._hub, self._supervisor, self._journal = hub, supervisor, journal
        self._carry_out = carry_out

    def now(self) -> float:
        """Seconds of the one clock that supervision goes by."""
        return asyncio.get_running_loop().time()

    async def until(self, condition: Callable[[], bool], *, at: float | None = None) -> None:
        """Handle inputs until `condition` holds; look at it again at the moment `at`.

        Raises Over when the run has its outcome.
        """
        while not condition():
            self._check()
            await self._turn(at)
        self._check()

    async def pause(self, until: float) -> None:
        """Handle inputs until that moment; raises Over."""
        await self.until(lambda: self.now() >= until, at=until)

    async def meanwhile(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` and handle inputs; raises what it raises, and Over, which calls it off."""
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._hub.put(_nothing))
        try:
            await self.until(task.done)
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def attend(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` of a run that is over to its end; what nodes still say is heard meanwhile, and
        the state is saved. Nothing more is ordered."""
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._hub.put(_nothing))
        try:
            while not task.done():
                self._journal.keep_up()
                await self._hub.turn(self._journal.wake_s)
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait([task])

    def _check(self) -> None:
        if self._supervisor.outcome is not None:
            raise Over

    async def _turn(self, at: float | None) -> None:
        await self._hub.flush()
        self._journal.keep_up()
        due = [moment for moment in (at, self._supervisor.wake_at) if moment is not None]
        waits = [max(0.0, moment - self.now()) for moment in due]
        waits += [] if self._journal.wake_s is None else [self._journal.wake_s]
        wait_s = min(waits, default=None)
        asleep_until = None if wait_s is None else self.now() + wait_s + _LATE_S
        await self._hub.turn(wait_s)
        if asleep_until is not None and self.now() > asleep_until:
            await asyncio.sleep(SECOND_LOOK_S)
            await self._hub.turn(0)
        self._supervisor.tick(self.now())
        self._carry_out()


def _nothing() -> None:
    """Wakes the loop, which then looks at its condition again."""
