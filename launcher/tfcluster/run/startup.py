"""The steps before training, in their order: ports, prepare, state put back, tasks started."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tfcluster.plan.plan import NodePlan, Plan, TaskId
from tfcluster.run import launch
from tfcluster.run.chaos import Fault
from tfcluster.run.exchange import Exchange, Message
from tfcluster.run.harvest import Harvest
from tfcluster.run.paths import RunPaths
from tfcluster.run.reports import PREPARE


@dataclass(frozen=True, slots=True)
class Startup:
    """Sends orders and waits for their answers; raises SurroundingsError for a bad one."""

    plan: Plan
    paths: RunPaths
    harvest: Harvest
    exchange: Exchange
    until: Callable[[Callable[[], bool]], Awaitable[None]]
    """Handles inputs until a condition holds; raises when the run is to end instead."""
    announce: Callable[[Mapping[str, int]], None]
    """Told each task's port just before the start."""
    faults: Sequence[Fault] = ()
    """Rehearsed ones."""
    prepares: bool = True

    async def hold_ports(
        self, nodes: Iterable[NodePlan], *, is_lost: Callable[[str], bool] = lambda node: False
    ) -> None:
        """Those of the nodes' tasks, for as long as their agents live; again: others, if chosen.

        Of a node that `is_lost` meanwhile no answer comes.
        """
        if self.plan.kind == "plain":
            return
        names = [node.name for node in nodes]
        for name in names:
            self.exchange.forget(name, "ports_held", "port_taken")
            self.exchange.send(name, launch.hold_ports(self.plan, name))
        for name in names:
            reply = await self._answer(name, "ports_held", "port_taken", is_lost=is_lost)
            if reply is not None and reply["type"] == "port_taken":
                raise launch.port_error(reply)

    async def prepare(self) -> None:
        """Once per node, before anything of the gang is started; raises PrepareError."""
        if not self.prepares:
            return
        for node, command in self.plan.prepare.items():
            log = self.paths.prepare_log(node)
            order = launch.start_prepare(command, log, run_id=self.paths.run_id)
            self.exchange.send(node, order)
        for node in self.plan.prepare:
            reply = await self._answer(node, f"{PREPARE} task_exited", f"{PREPARE} start_failed")
            assert reply is not None
            launch.check_prepared(node, reply, self.paths.prepare_log(node))

    def start_tasks(
        self,
        number: int,
        members: Sequence[TaskId],
        *,
        only: Sequence[TaskId],
        restored_step: int | None,
    ) -> None:
        """Give the order to start `only`, of an attempt of `members`."""
        held = [self.exchange.answer(node.name, ["ports_held"]) for node in self.plan.nodes]
        attempt = launch.attempt_of(self.plan, number, members, filter(None, held))
        if number == 1:
            self.announce({str(task): port for task, port in attempt.ports.items()})
        for node in dict.fromkeys(self.plan.task(task).node for task in only):
            order = launch.start(
                attempt,
                node,
                self.paths,
                holds_ports=self.exchange.holds_ports(node),
                only=only,
                restored_step=restored_step,
                chaos=self.faults,
            )
            self.exchange.send(node, order)

    async def _answer(
        self, node: str, *kinds: str, is_lost: Callable[[str], bool] = lambda node: False
    ) -> Message | None:
        """None where the node `is_lost` before it has answered."""
        await self.until(lambda: is_lost(node) or self.exchange.answer(node, kinds) is not None)
        return self.exchange.answer(node, kinds)
