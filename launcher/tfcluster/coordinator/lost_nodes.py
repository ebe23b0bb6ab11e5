"""The lost nodes of a run: how long, and how often, one that does not answer is tried again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tfcluster.coordinator.loop import Loop
from tfcluster.coordinator.startup import Startup, loss_by
from tfcluster.errors import PortInUseError, PrepareError, SetupError
from tfcluster.node_loss import LossNature, NodeLoss
from tfcluster.plans.plan import NodePlan
from tfcluster.rundir.events import Hint
from tfcluster.supervision.decisions import NextAttempt
from tfcluster.supervision.membership import can_resize
from tfcluster.supervision.supervisor import Supervisor

FIRST_PAUSE_S: Final = 2.0
LONGEST_PAUSE_S: Final = 30.0
_UNUSED: Final = NodeLoss("the gang does without it")


def pauses() -> Iterator[float]:
    """Yield the pauses in seconds between two tries to reach a node, which double up to a limit."""
    pause_s = FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)


@dataclass(slots=True)
class LostNodes:
    """The nodes that are lost, or are taken away, and the tries to bring them up again."""

    supervisor: Supervisor
    startup: Startup
    loop: Loop
    _lost: set[str] = field(default_factory=set)
    """Nodes that the supervisor knows as lost."""
    _leaving: set[str] = field(default_factory=set)
    """Nodes that answer, but are taken away: the next start replaces them."""
    _given_up: set[str] = field(default_factory=set)
    """Lost nodes that could not be brought up again."""
    _returning: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    """The given-up nodes of a gang that can grow again."""

    def is_connected(self, node: NodePlan) -> bool:
        return node.name not in self._lost

    def lose(self, node: str, loss: NodeLoss) -> None:
        """Report to the supervisor that the node's agent is gone; once until it is back."""
        self.startup.broken[node] = loss.reason
        if node in self._lost:
            return
        self._lost.add(node)
        self.supervisor.node_lost(node, loss, self.loop.now())
        if self.supervisor.is_spare(node):  # no restart has to wait for it
            self.supervisor.node_gone(node, loss, self.loop.now())
            self.give_up(node)

    async def leave(self, node: str, signal: str) -> None:
        """Report to the supervisor that the node is taken away soon, and why if that is known."""
        if node not in self._lost | self._leaving:
            self._leaving.add(node)
            loss = await self.startup.hub.explain(node) or NodeLoss(
                f"{node} is taken away ({signal})"
            )
            self.startup.hub.put(lambda: self.supervisor.node_leaving(node, loss, self.loop.now()))

    def drop(self, node: str) -> None:
        """Note that the supervisor has given up the node's agent: nothing is sent to it."""
        self._lost.add(node)
        self.startup.broken[node] = "its agent does not answer"

    def give_up(self, node: str) -> None:
        """Let no attempt wait any more for a node that is gone for the supervisor.

        A gang that goes on without it may grow again: the node is tried again in the background.
        """
        self._lost.add(node)
        self._given_up.add(node)
        if can_resize(self.startup.plan):
            self._returning.put_nowait(node)

    async def part_from_leaving(self) -> None:
        """Part from nodes that are taken away, whose tasks have ended: they count as lost."""
        leaving, self._leaving = self._leaving, set()
        for node in sorted(leaving):
            self._lost.add(node)
            await self.startup.hub.part_from(node)

    async def reconnect(self, again: NextAttempt | None, *, only: str = "") -> None:
        """Bring up the lost nodes, or `only` this one, for the attempt `again`.

        Once a new agent answers, no old task lives on its node. Each node is tried until then, or
        until the supervisor has no more patience, or wants another attempt: a host may be down for
        minutes, and as long as the lease of its old agent lasts, that agent may be the reason.
        """
        began, waits = dict[str, float](), pauses()
        while self.is_next(again) and (lost := self._awaited(only)):
            due = list[float]()
            for node in lost:
                if self.is_next(again):
                    since = began.get(node.name)
                    began.setdefault(node.name, self.loop.now())
                    due += await self._try(node, since)
            if due:
                await self._pause_for(again, min(self.loop.now() + next(waits), *due))
            elif only:
                return

    async def _pause_for(self, again: NextAttempt | None, until: float) -> None:
        """Pause until that moment, at most as long as the attempt is wanted."""
        await self.loop.until(lambda: self.loop.now() >= until or not self.is_next(again), at=until)

    def is_next(self, again: NextAttempt | None) -> bool:
        """Return whether the supervisor still wants this attempt, or with None no other one."""
        return self.supervisor.next_attempt is again

    def _awaited(self, only: str) -> list[NodePlan]:
        """Return the lost nodes to reconnect; those that the next attempt does without are left."""
        for name in sorted(self._lost - self._given_up):
            if not (only or self.supervisor.membership.uses(name)):
                self.supervisor.node_gone(name, _UNUSED, self.loop.now())
                self.give_up(name)
        lost = self._lost - self._given_up
        return [
            node
            for node in self.startup.plan.nodes
            if node.name in lost and only in ("", node.name)
        ]

    async def _try(self, node: NodePlan, since: float | None) -> list[float]:
        """Try to bring up a lost node; the first such try, if not this, was at `since`.

        Return the moments at which another try must be made; none if there is to be no other one.
        """
        name, began = node.name, self.loop.now()
        self.startup.run_writer.wait_for(f"the agent of {name}")
        try:
            await self.startup.bring_up([node])
        except PortInUseError:
            raise
        except SetupError as error:
            # Its old agent may be the reason, unless the node was reached.
            fence = self.startup.hub.fenced_until(name) if name in self.startup.broken else 0.0
            end = max(began if since is None else since, fence) + self.supervisor.patience_s(name)
            loss = loss_by(error)
            is_hopeless = isinstance(error, PrepareError) or loss.nature is LossNature.NO_PLACE
            if began >= end or is_hopeless:
                self.supervisor.lost_node_unreached(name, loss, self.loop.now())
                if name in self.supervisor.gone:
                    self.give_up(name)
                return []
            now = self.loop.now()
            awaited = (
                f"the lease of {name}: its tasks may run for {fence - now:.0f} s"
                if fence > now
                else f"{name} to answer: it is tried for {max(0.0, end - now):.0f} s more"
            )
            self.startup.run_writer.wait_for(awaited)
            if since is None:
                hint = f"{error.message}; waiting for {awaited}"
                self.startup.run_writer.record(Hint(message=hint))
            return [at for at in (fence, end) if at > began]
        self._take_back(name)
        return []

    def _take_back(self, node: str) -> None:
        """Report to the supervisor that a lost node is ready for tasks."""
        for nodes in (self._given_up, self._lost, self._leaving):
            nodes.discard(node)
        self.supervisor.node_back(node, self.loop.now())

    async def bring_all_back(self) -> None:
        """Try to bring up the given-up nodes, each independently of the others, until cancelled.

        A try never makes the run wait.
        """
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._bring_back(await self._returning.get()))

    async def _bring_back(self, name: str) -> None:
        """Try until the node is ready for tasks."""
        least_s = 0.0
        for pause_s in pauses():
            await asyncio.sleep(max(pause_s, least_s))
            with contextlib.suppress(SetupError):
                await self.startup.bring_up([self.startup.plan.node(name)], is_awaited=False)
                self._take_back(name)
                self.startup.hub.wake()  # to carry out the orders
                return
            least_s = 0.0
            if name in self.startup.reached:  # it answered, but cannot be used
                least_s = self.startup.plan.supervision.grow_every_s
                await self.startup.hub.part_from(name)
