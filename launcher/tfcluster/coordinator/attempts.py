"""Starts of attempts on connected nodes, and the return of nodes that an attempt did without."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tfcluster.coordinator.gathering import RunGathering
from tfcluster.coordinator.loop import Loop
from tfcluster.coordinator.startup import Startup, loss_by
from tfcluster.errors import NodeLostError, PortInUseError, PrepareError, SetupError
from tfcluster.node_loss import LossNature, NodeLoss
from tfcluster.nodes.hub import Hub
from tfcluster.nodes.orders import Answers
from tfcluster.plans.plan import NodePlan, Plan, TaskId
from tfcluster.rundir.events import Event, Hint, NodesAllocated, Warned
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.states import Status
from tfcluster.supervision.decisions import NextAttempt, StartAlone
from tfcluster.supervision.membership import can_resize
from tfcluster.supervision.restart_policy import chief_among
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
class Attempts:
    """The starts of a run's attempts."""

    supervisor: Supervisor
    startup: Startup
    loop: Loop
    run_gathering: RunGathering
    due_alone: list[StartAlone] = field(default_factory=list)
    """Tasks to restart alone, while the others run on."""
    _lost: set[str] = field(default_factory=set)
    """Nodes that the supervisor knows as lost."""
    _leaving: set[str] = field(default_factory=set)
    """Nodes that answer, but are taken away: the next start replaces them."""
    _given_up: set[str] = field(default_factory=set)
    """Lost nodes that could not be brought up again."""
    _returning: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    """The given-up nodes of a gang that can grow again."""

    @property
    def plan(self) -> Plan:
        return self.startup.plan

    @property
    def hub(self) -> Hub:
        return self.startup.hub

    @property
    def run_writer(self) -> RunWriter:
        return self.startup.run_writer

    async def run(self) -> None:
        """Start the first attempt and all that the supervisor orders, until cancelled.

        Raises SetupError.
        """
        await self.start_first()
        works = [
            asyncio.create_task(work) for work in (self.run_restarts(), self._bring_all_back())
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
        hosts = await self.hub.open(self.plan.nodes)
        state = self.run_writer.state
        if hosts or state.status is Status.QUEUED:
            self.startup.plan = self.plan.at(hosts)
            addresses = {str(task.id): task.address for task in self.plan.tasks}
            allocation = self.hub.allocation
            event = NodesAllocated(hosts=hosts, addresses=addresses, allocation=allocation)
            self.run_writer.record(event)
        self.supervisor.begin_run(
            self.loop.now(),
            self.run_gathering.newest,
            attempt=state.attempt,
            ran_s=(state.continued or {}).get("ran_s", 0.0),
            restarts=state.restarts,
        )
        await self.startup.bring_up(self.plan.nodes, unreached=self._start_without)
        members = self.supervisor.membership.members
        if state.attempt:  # its scheduler has started it again
            chief = chief_among(self.plan, members)
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
                    self._give_up(node)
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

    def lose(self, node: str, loss: NodeLoss) -> None:
        """Report to the supervisor that the node's agent is gone; once until it is back."""
        self.startup.broken[node] = loss.reason
        if node in self._lost:
            return
        self._lost.add(node)
        self.supervisor.node_lost(node, loss, self.loop.now())
        if self.supervisor.is_spare(node):  # no restart has to wait for it
            self.supervisor.node_gone(node, loss, self.loop.now())
            self._give_up(node)

    async def leave(self, node: str, signal: str) -> None:
        """Report to the supervisor that the node is taken away soon, and why if that is known."""
        if node not in self._lost | self._leaving:
            self._leaving.add(node)
            loss = await self.hub.explain(node) or NodeLoss(f"{node} is taken away ({signal})")
            self.hub.put(lambda: self.supervisor.node_leaving(node, loss, self.loop.now()))

    def drop(self, node: str) -> None:
        """Note that the supervisor has given up the node's agent: nothing is sent to it."""
        self._lost.add(node)
        self.startup.broken[node] = "its agent does not answer"

    async def _start(self, number: int, members: tuple[TaskId, ...]) -> None:
        to_start = self.supervisor.begin(number, members)
        self.due_alone.clear()
        # Tasks that the user starts by hand restore the same state as the others.
        by_hand = [task.id for task in self.plan.by_hand if self.hub.uses_run_folder(task.node)]
        step = await self._put_state_back([*to_start, *by_hand])
        self.run_gathering.follow_chief(self.supervisor.gang.chief)
        self._order_start(number, members, to_start, step)

    async def _put_state_back(self, tasks: Sequence[TaskId]) -> int | None:
        try:
            return await self.run_gathering.put_state_back(tasks)
        finally:  # it may have found damaged checkpoints
            for event in self.run_gathering.take_events():
                self.hub.put(partial(self.run_writer.record, event))

    def _order_start(
        self, number: int, members: Sequence[TaskId], tasks: Sequence[TaskId], step: int | None
    ) -> None:
        """Order the start of `tasks` that are still to start after the state was put back."""
        if due := self.supervisor.order(tasks, number, self.loop.now()):
            self.startup.start_tasks(number, members, only=due, restored_step=step)

    async def _restart(self, again: NextAttempt) -> None:
        await self.loop.pause(self.loop.now() + again.delay_s)
        await self._part_from_leaving()
        await self._reconnect(again)
        if not self._is_next(again):
            return  # the run ends, or another gang is to start
        if self.run_gathering.has_missed:
            self._record(await self.run_gathering.gather_missed())
        if any(node.capabilities.makes_nodes for node in self.plan.nodes):
            for sentence in await self.hub.repair():
                self.run_writer.record(Warned(message=sentence))
        if again.fresh_ports and self._is_next(again):
            connected = [node for node in self.plan.nodes if node.name not in self._lost]
            answers = Answers(self.hub, self.loop.until, self.run_writer.wait_for)
            await self.startup.hold_ports(connected, answers)
            await self._reconnect(again)
        if self._is_next(again):
            await self._start(again.number, again.members)

    async def _restart_alone(self, order: StartAlone) -> None:
        await self._part_from_leaving()
        await self._reconnect(None, only=self.plan.task(order.task).node)
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
            self.run_writer.record(event)

    async def _part_from_leaving(self) -> None:
        """Part from nodes that are taken away, whose tasks have ended: they count as lost."""
        leaving, self._leaving = self._leaving, set()
        for node in sorted(leaving):
            self._lost.add(node)
            await self.hub.part_from(node)

    async def _reconnect(self, again: NextAttempt | None, *, only: str = "") -> None:
        """Bring up the lost nodes, or `only` this one, for the attempt `again`.

        Once a new agent answers, no old task lives on its node. Each node is tried until then, or
        until the supervisor has no more patience, or wants another attempt: a host may be down for
        minutes, and as long as the lease of its old agent lasts, that agent may be the reason.
        """
        began, waits = dict[str, float](), pauses()
        while self._is_next(again) and (lost := self._awaited(only)):
            due = list[float]()
            for node in lost:
                if self._is_next(again):
                    since = began.get(node.name)
                    began.setdefault(node.name, self.loop.now())
                    due += await self._try(node, since)
            if due:
                await self._pause_for(again, min(self.loop.now() + next(waits), *due))
            elif only:
                return

    async def _pause_for(self, again: NextAttempt | None, until: float) -> None:
        """Pause until that moment, at most as long as the attempt is wanted."""
        await self.loop.until(
            lambda: self.loop.now() >= until or not self._is_next(again), at=until
        )

    def _is_next(self, again: NextAttempt | None) -> bool:
        """Return whether the supervisor still wants this attempt, or with None no other one."""
        return self.supervisor.next_attempt is again

    def _awaited(self, only: str) -> list[NodePlan]:
        """Return the lost nodes to reconnect; those that the next attempt does without are left."""
        for name in sorted(self._lost - self._given_up):
            if not (only or self.supervisor.membership.uses(name)):
                self.supervisor.node_gone(name, _UNUSED, self.loop.now())
                self._give_up(name)
        lost = self._lost - self._given_up
        return [node for node in self.plan.nodes if node.name in lost and only in ("", node.name)]

    async def _try(self, node: NodePlan, since: float | None) -> list[float]:
        """Try to bring up a lost node; the first such try, if not this, was at `since`.

        Return the moments at which another try must be made; none if there is to be no other one.
        """
        name, began = node.name, self.loop.now()
        self.run_writer.wait_for(f"the agent of {name}")
        try:
            await self.startup.bring_up([node])
        except PortInUseError:
            raise
        except SetupError as error:
            # Its old agent may be the reason, unless the node was reached.
            fence = self.hub.fenced_until(name) if name in self.startup.broken else 0.0
            end = max(began if since is None else since, fence) + self.supervisor.patience_s(name)
            loss = loss_by(error)
            is_hopeless = isinstance(error, PrepareError) or loss.nature is LossNature.NO_PLACE
            if began >= end or is_hopeless:
                self.supervisor.lost_node_unreached(name, loss, self.loop.now())
                if name in self.supervisor.gone:
                    self._give_up(name)
                return []
            now = self.loop.now()
            awaited = (
                f"the lease of {name}: its tasks may run for {fence - now:.0f} s"
                if fence > now
                else f"{name} to answer: it is tried for {max(0.0, end - now):.0f} s more"
            )
            self.run_writer.wait_for(awaited)
            if since is None:
                hint = f"{error.message}; waiting for {awaited}"
                self.run_writer.record(Hint(message=hint))
            return [at for at in (fence, end) if at > began]
        self._take_back(name)
        return []

    def _give_up(self, node: str) -> None:
        """Let no attempt wait any more for a node that is gone for the supervisor.

        A gang that goes on without it may grow again: the node is tried again in the background.
        """
        self._lost.add(node)
        self._given_up.add(node)
        if can_resize(self.plan):
            self._returning.put_nowait(node)

    def _take_back(self, node: str) -> None:
        """Report to the supervisor that a lost node is ready for tasks."""
        for nodes in (self._given_up, self._lost, self._leaving):
            nodes.discard(node)
        self.supervisor.node_back(node, self.loop.now())

    async def _bring_all_back(self) -> None:
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
                await self.startup.bring_up([self.plan.node(name)], is_awaited=False)
                self._take_back(name)
                self.hub.put(lambda: None)  # wakes the loop, which carries out the orders
                return
            least_s = 0.0
            if name in self.startup.reached:  # it answered, but cannot be used
                least_s = self.plan.supervision.grow_every_s
                await self.hub.part_from(name)
