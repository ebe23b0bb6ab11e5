"""Waits for agents' answers to orders: every wait has a deadline, and says what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tfcluster.errors import NodeLostError
from tfcluster.run.exchange import Exchange

ANSWER_S: Final = 60.0
"""An agent that has not answered so long after an order does not work."""
SHOWN_AFTER_S: Final = 3.0
"""So long an answer may take before `status` says that it is waited for."""


class Until(Protocol):
    """Handles inputs until a condition holds; raises when the run is to end instead."""

    def __call__(
        self, condition: Callable[[], bool], *, at: float | None = None
    ) -> Awaitable[None]:
        """`at`: a moment at which the condition is to be looked at again."""
        ...


def never(node: str) -> bool:
    """No node is lost that is not noticed otherwise."""
    return False


@dataclass(frozen=True, slots=True)
class Answers:
    """Of the agents that `exchange` reaches."""

    exchange: Exchange
    until: Until
    wait_for: Callable[[str | None], None] = lambda what: None
    """Told what is waited for, once that takes long; None: nothing any more."""

    async def require(
        self,
        nodes: Sequence[str],
        *kinds: str,
        what: str,
        work_s: float | None = 0.0,
        is_lost: Callable[[str], bool] = never,
    ) -> None:
        """As `missing`; raises NodeLostError where a node has not answered in time."""
        silent = await self.missing(nodes, *kinds, what=what, work_s=work_s, is_lost=is_lost)
        if silent:
            raise NodeLostError(
                f"{', '.join(silent)}: the agent was told {what}, and does not answer",
                cure="is that machine overloaded, out of memory, or is a disk of it dead?",
            )

    async def missing(
        self,
        nodes: Sequence[str],
        *kinds: str,
        what: str,
        work_s: float | None = 0.0,
        is_lost: Callable[[str], bool] = never,
    ) -> list[str]:
        """Wait for messages of one of `kinds` from all `nodes`; returns those that do not answer.

        `what` they were told, ``to …``; `work_s`: how long that itself may take; None: as long as
        it takes. A node that `is_lost` answers no more.
        """

        def silent() -> list[str]:
            waiting = (node for node in nodes if self.exchange.answer(node, kinds) is None)
            return [node for node in waiting if not is_lost(node)]

        begun = asyncio.get_running_loop().time()
        await self._until(lambda: not silent(), begun + min(SHOWN_AFTER_S, ANSWER_S))
        if late := silent():
            self.wait_for(f"{', '.join(late)} {what}")
            at = None if work_s is None else begun + work_s + ANSWER_S
            await self._until(lambda: not silent(), at)
            self.wait_for(None)
        return silent()

    async def _until(self, condition: Callable[[], bool], at: float | None) -> None:
        now = asyncio.get_running_loop().time
        await self.until(lambda: condition() or (at is not None and now() >= at), at=at)
