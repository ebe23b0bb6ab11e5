"""Starts of attempts: the first one, those of a gang and those of one task that restarts alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tfcluster.coordinator.gathering import RunGathering
from tfcluster.coordinator.loop import Loop
from tfcluster.coordinator.lost_nodes import LostNodes
from tfcluster.coordinator.startup import Startup, loss_by
from tfcluster.errors import NodeLostError, SetupError
from tfcluster.nodes.orders import Answers
from tfcluster.plans.plan import TaskId
from tfcluster.rundir.events import Event, NodesAllocated, Warned
from tfcluster.rundir.states import Status
from tfcluster.supervision.decisions import NextAttempt, StartAlone
from tfcluster.supervision.restart_policy import chief_among
from tfcluster.supervision.supervisor import Supervisor


@dataclass(slots=True)
class Attempts:
    """The starts of a run's attempts."""

    supervisor: Supervisor
    startup: Startup
    lost_nodes: LostNodes
    loop: Loop
    run_gathering: RunGathering
    due_alone: list[StartAlone] = field(default_factory=list)
    """Tasks to restart alone, while the others run on."""

    async def run(self) -> None:
        """Start the first attempt and all that the supervisor orders, until cancelled.

        Raises SetupError.
        """
        await self.start_first()
        works = [
            asyncio.create_task(work)
            for work in (self.run_restarts(), self.lost_nodes.bring_all_back())
        ]
        try:
            ended, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            for work in ended:  # by an error
                work.result()
        finally:
            for work in works:
                work.cancel()
            await asyncio.wait(works)  # they connect to nodes

    async def start_first(self) -> None:
        """Open all nodes, bring them up and start the first attempt. Raises SetupError."""
        hosts = await self.startup.hub.open(self.startup.plan.nodes)
        state = self.startup.run_writer.state
        if hosts or state.status is Status.QUEUED:
            self.startup.plan = self.startup.plan.at(hosts)
            addresses = {str(task.id): task.address for task in self.startup.plan.tasks}
            allocation = self.startup.hub.allocation
            event = NodesAllocated(hosts=hosts, addresses=addresses, allocation=allocation)
            self.startup.run_writer.record(event)
        self.supervisor.begin_run(
            self.loop.now(),
            self.run_gathering.newest,
            attempt=state.attempt,
            ran_s=(state.continued or {}).get("ran_s", 0.0),
            restarts=state.restarts,
        )
        await self.startup.bring_up(self.startup.plan.nodes, unreached=self._start_without)
        members = self.supervisor.membership.members
        if state.attempt:  # its scheduler has started it again
            chief = chief_among(self.startup.plan, members)
            self._record(await self.run_gathering.gather_left(chief))
        await self._start(state.attempt + 1, members)

    def _start_without(self, errors: Mapping[str, SetupError]) -> None:
        """Raise `errors` as one, unless the run can start without these nodes.

        Where the supervisor has the job start again, that counts.
        """
        if all(isinstance(error, NodeLostError) for error in errors.values()):
            losses = {node: loss_by(error) for node, error in errors.items()}
            self.supervisor.new_nodes_unreached(losses, self.loop.now())
            if errors.keys() <= self.supervisor.gone.keys():
                for node in losses:
                    self.lost_nodes.give_up(node)
                return
        NodeLostError.raise_all([*errors.values()])

    async def run_restarts(self) -> None:
        """Carry out the restarts that the supervisor orders, until cancelled."""
        supervisor, due_alone = self.supervisor, self.due_alone
        while True:
            await self.loop.until(lambda: supervisor.next_attempt is not None or due_alone != [])
            if (again := supervisor.next_attempt) is not None:
                await self._restart(again)
            else:
                await self._restart_alone(due_alone.pop(0))

    async def _start(self, number: int, members: tuple[TaskId, ...]) -> None:
        to_start = self.supervisor.begin(number, members)
        self.due_alone.clear()
        # Tasks that the user starts by hand restore the same state as the others.
        by_hand = [
            task.id
            for task in self.startup.plan.by_hand
            if self.startup.hub.uses_run_folder(task.node)
        ]
        step = await self._put_state_back([*to_start, *by_hand])
        self.run_gathering.follow_chief(self.supervisor.gang.chief)
        self._order_start(number, members, to_start, step)

    async def _put_state_back(self, tasks: Sequence[TaskId]) -> int | None:
        try:
            return await self.run_gathering.put_state_back(tasks)
        finally:  # it may have found damaged checkpoints
            for event in self.run_gathering.take_events():
                self.startup.hub.put(partial(self.startup.run_writer.record, event))

    def _order_start(
        self, number: int, members: Sequence[TaskId], tasks: Sequence[TaskId], step: int | None
    ) -> None:
        """Order the start of `tasks` that are still to start after the state was put back."""
        if due := self.supervisor.order(tasks, number, self.loop.now()):
            self.startup.start_tasks(number, members, only=due, restored_step=step)

    async def _restart(self, again: NextAttempt) -> None:
        await self.loop.pause(self.loop.now() + again.delay_s)
        await self.lost_nodes.part_from_leaving()
        await self.lost_nodes.reconnect(again)
        if not self.lost_nodes.is_next(again):
            return  # the run ends, or another gang is to start
        if self.run_gathering.has_missed:
            self._record(await self.run_gathering.gather_missed())
        if any(node.capabilities.makes_nodes for node in self.startup.plan.nodes):
            for sentence in await self.startup.hub.repair():
                self.startup.run_writer.record(Warned(message=sentence))
        if again.fresh_ports and self.lost_nodes.is_next(again):
            connected = [*filter(self.lost_nodes.is_connected, self.startup.plan.nodes)]
            answers = Answers(self.startup.hub, self.loop.until, self.startup.run_writer.wait_for)
            await self.startup.hold_ports(connected, answers)
            await self.lost_nodes.reconnect(again)
        if self.lost_nodes.is_next(again):
            await self._start(again.number, again.members)

    async def _restart_alone(self, order: StartAlone) -> None:
        await self.lost_nodes.part_from_leaving()
        await self.lost_nodes.reconnect(None, only=self.startup.plan.task(order.task).node)
        if order.task == self.supervisor.gang.chief:  # it continues from what it saved last
            self._record(await self.run_gathering.gather_latest(others_train=True))
        members = tuple(member.id for member in self.supervisor.gang)
        try:
            step = await self._put_state_back([order.task])
        except SetupError as error:
            task, number = str(order.task), order.attempt
            self.supervisor.start_failed(task, number, error.message, self.loop.now())
        else:
            self._order_start(order.attempt, members, [order.task], step)

    def _record(self, events: Sequence[Event]) -> None:
        for event in events:
            self.startup.run_writer.record(event)
