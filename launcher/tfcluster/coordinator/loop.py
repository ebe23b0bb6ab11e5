"""The one loop of a run: each turn sends queued orders, handles inputs and does what is due."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, TypeVar

from tfcluster.agent.stop_clock import StopClock
from tfcluster.nodes.hub import Hub
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.supervision.supervisor import Supervisor
from tfcluster.wire.agent_link import SECOND_LOOK_S

T = TypeVar("T")

_LATE_S: Final = 2.0
"""A turn that is so late means that this process was stopped (Ctrl-Z): messages that came
meanwhile are read before deadlines are checked."""


class RunOver(Exception):
    """The run has its outcome, so waiting is pointless."""


class Loop:
    """The loop of a run. It alone handles inputs; the work of a run waits beside it (`until`)."""

    def __init__(
        self, hub: Hub, supervisor: Supervisor, run_writer: RunWriter, carry_out: Callable[[], None]
    ) -> None:
        """Prepare the loop; `carry_out` does what the supervisor has ordered."""
        self._hub, self._supervisor, self._run_writer = hub, supervisor, run_writer
        self._carry_out = carry_out
        self._turned = asyncio.Event()
        """Set for a moment after each turn."""

    def now(self) -> float:
        """Return the time in seconds on the clock that supervision uses."""
        return asyncio.get_running_loop().time()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Handle inputs until `work` ends, and return its result.

        Raises what `work` raises, and RunOver once the run has its outcome, which cancels `work`.
        """
        async with self._running(work) as task:
            while not task.done():
                await self._turn()
                if self._supervisor.outcome is not None:
                    raise RunOver
                self._turned.set()
                self._turned.clear()
                await asyncio.sleep(0)  # who waits for what has happened goes on first
            return task.result()

    async def until(self, condition: Callable[[], bool], *, at: float | None = None) -> None:
        """Wait until `condition` holds; it is also checked at the moment `at`.

        Once the run has its outcome, this only ends when it is cancelled.
        """
        self._hub.wake()  # which sends the orders so far
        while self._supervisor.outcome is not None or not condition():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(at):
                    await self._turned.wait()

    async def pause(self, until: float) -> None:
        """Wait until the moment `until`."""
        await self.until(lambda: self.now() >= until, at=until)

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
        task.add_done_callback(lambda _: self._hub.wake())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _turn(self) -> None:
        await self._hub.flush()
        self._run_writer.keep_up()
        waits = [self._run_writer.wake_s]
        if (wake_at := self._supervisor.wake_at) is not None:
            waits.append(max(0.0, wake_at - self.now()))
        wait_s = min((wait for wait in waits if wait is not None), default=None)
        asleep_until = None if wait_s is None else self.now() + wait_s + _LATE_S
        await self._hub.turn(wait_s)
        if asleep_until is not None and self.now() > asleep_until:
            await asyncio.sleep(SECOND_LOOK_S)
            await self._hub.turn(0)
        self._supervisor.tick(self.now())
        self._carry_out()


class RunLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still while its process is stopped.

    A scheduler suspends a whole job, and a user stops a coordinator with Ctrl-Z. All deadlines are
    times of this clock: none has passed when the process goes on, and no node is silent.
    """

    def __init__(self) -> None:
        self.on_stopped: Callable[[float], None] = lambda seconds: None
        """Called with its length after each stop, before the next callback."""
        self.clock = StopClock()
        self._told_s = 0.0
        """The time for which the process was stopped, as far as it was told."""
        super().__init__(_Selector(self))

    def time(self) -> float:
        self.clock.note_turn()  # what is due in 2 s from now is not due in 2 s and the stop
        return super().time() - self.clock.stopped_s

    def tell(self) -> None:
        """Tell of what was noted of a stop."""
        if seconds := self.clock.stopped_s - self._told_s:
            self._told_s = self.clock.stopped_s
            self.on_stopped(seconds)


class _Selector(selectors.DefaultSelector):
    """The selector of a `RunLoop`, which measures its waits and what happens between them."""

    def __init__(self, loop: RunLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        self._loop.clock.note_turn()
        ready = super().select(timeout)
        self._loop.clock.note_turn(timeout)
        self._loop.tell()
        return ready
