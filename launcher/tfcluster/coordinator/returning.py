"""Tries to reach nodes that were given up, in the background, while a smaller gang trains."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from tfcluster.coordinator.startup import Startup
from tfcluster.errors import NodeLostError, SetupError
from tfcluster.nodes.hub import Hub
from tfcluster.plans.plan import NodePlan

FIRST_PAUSE_S: Final = 2.0
LONGEST_PAUSE_S: Final = 30.0
"""The pause between two tries doubles up to this."""
_POLL_S: Final = 0.2


@dataclass(slots=True)
class Returning:
    """The nodes that were given up: each is dialled until it answers, and set up like a new one.

    A try never makes the run wait: it uses nothing of the loop but its inputs.
    """

    startup: Startup
    connect: Callable[[NodePlan], Coroutine[Any, Any, None]]
    """Connects to a node's agent, whose predecessor has certainly ended; raises SetupError."""
    note_back: Callable[[str], None]
    """Called in the loop with a node that is set up."""
    note_lost: Callable[[str, str], None]
    """Called in the loop with a node that answered but cannot be used, and the reason."""
    _given_up: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    _broken: dict[str, str] = field(default_factory=dict)
    """Node that was lost again while it was set up → why."""

    @property
    def hub(self) -> Hub:
        return self.startup.hub

    def give_up(self, node: str) -> None:
        """Try from now on to reach `node`."""
        self._given_up.put_nowait(node)

    def note_broken(self, node: str, why: str) -> None:
        """Note that the agent of a node, which may be one of these, is lost."""
        self._broken[node] = why

    async def follow(self) -> None:
        """Try to reach the nodes, each independently of the others, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._bring_back(await self._given_up.get()))

    async def _bring_back(self, node: str) -> None:
        """Try until the node is set up."""
        pause_s, planned = FIRST_PAUSE_S, self.startup.plan.node(node)
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            self._broken.pop(node, None)
            with contextlib.suppress(SetupError):
                await self.connect(planned)
                if await self._is_set_up(planned):
                    return
                pause_s = max(pause_s, self.startup.plan.supervision.grow_every_s)

    async def _is_set_up(self, node: NodePlan) -> bool:
        """Set up a node that answers; return whether that succeeded. Else its agent is ended."""
        try:
            await self._set_up(node)
        except SetupError as error:
            why = error.message
            self.hub.put(lambda: self.note_lost(node.name, why))
            await self.hub.part_from(node.name)
            return False
        self.hub.put(lambda: self._conclude(node.name))
        return True

    async def _set_up(self, node: NodePlan) -> None:
        """Do what the first start does on a node. Raises SetupError."""
        startup = self.startup.in_background(self._until)
        await startup.find_code([node])
        await startup.send_code([node], again=True)
        startup.preload([node])
        await startup.hold_ports([node], is_lost=self._is_lost)
        if node.capabilities.in_containers:  # the new one lacks what prepare made in the old one
            await startup.prepare([node], is_lost=self._is_lost)
        await startup.await_preload([node], is_lost=self._is_lost)
        if self._is_lost(node.name):
            raise NodeLostError(f"its new agent was lost at once: {self._why(node.name)}")

    def _conclude(self, node: str) -> None:
        """Report a node that is set up; in the loop, so that no loss is missed."""
        if self._is_lost(node):
            self.note_lost(node, self._why(node))
            self.give_up(node)
        else:
            self.note_back(node)

    def _is_lost(self, node: str) -> bool:
        return node in self._broken or self.hub.is_lost(node)

    def _why(self, node: str) -> str:
        return self._broken.get(node, "its connection ended")

    async def _until(self, condition: Callable[[], bool], *, at: float | None = None) -> None:
        """Wait for `condition`, while the run's loop sends the orders and handles the answers."""
        now = asyncio.get_running_loop().time
        self.hub.put(lambda: None)  # wakes the loop, which sends the orders
        while True:
            if condition() or (at is not None and now() >= at):
                return
            await asyncio.sleep(_POLL_S)
