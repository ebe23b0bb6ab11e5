"""Starts of attempts on connected nodes, and the return of nodes that an attempt did without."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tfcluster.backends.base import NoPlaceError
from tfcluster.coordinator.gathering import RunGathering
from tfcluster.coordinator.loop import Loop
from tfcluster.coordinator.startup import Startup
from tfcluster.errors import NodeLostError, PortInUseError, SetupError
from tfcluster.nodes.hub import Hub
from tfcluster.plans.plan import NodePlan, Plan, TaskId
from tfcluster.rundir.events import Event, NodeLost, NodesAllocated, Warned
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.states import Status
from tfcluster.supervision.decisions import NextAttempt, StartAlone
from tfcluster.supervision.membership import can_resize
from tfcluster.supervision.supervisor import Supervisor

FIRST_PAUSE_S: Final = 2.0
LONGEST_PAUSE_S: Final = 30.0
"""The pause between two tries doubles up to this."""
_POLL_S: Final = 0.2


@dataclass(slots=True)
class Attempts:
    """The starts of a run's attempts. A method that waits raises RunOver when the run is over."""

    supervisor: Supervisor
    startup: Startup
    run_writer: RunWriter
    loop: Loop
    connect: Callable[[NodePlan], Coroutine[Any, Any, None]]
    """Connects to a node's agent and listens to it; raises SetupError."""
    record: Callable[[Event], None]
    due_alone: list[StartAlone] = field(default_factory=list)
    """Tasks to restart alone, while the others run on."""
    _lost: set[str] = field(default_factory=set)
    _leaving: set[str] = field(default_factory=set)
    """Nodes that answer, but are taken away: the next start replaces them."""
    _given_up: set[str] = field(default_factory=set)
    """Lost nodes that could not be reconnected."""
    returning: Returning = field(init=False)
    """The given-up nodes of a gang that can grow again."""

    def __post_init__(self) -> None:
        self.returning = Returning(
            self.startup, self.connect, self._take_back, self._note_lost_again
        )

    @property
    def plan(self) -> Plan:
        return self.startup.plan

    @property
    def hub(self) -> Hub:
        return self.startup.hub

    @property
    def run_gathering(self) -> RunGathering:
        return self.startup.run_gathering

    async def start_first(self) -> None:
        """Open and connect to all nodes, run the startup steps and start the first attempt.

        Raises SetupError.
        """
        hosts = await self.loop.run_alongside(self.hub.open(self.plan.nodes))
        if hosts or self.run_writer.state.status is Status.QUEUED:
            self.startup.plan = self.plan.at(hosts)
            addresses = {str(task.id): task.address for task in self.plan.tasks}
            allocation = self.hub.allocation
            self.record(NodesAllocated(hosts=hosts, addresses=addresses, allocation=allocation))
        state = self.run_writer.state
        self.supervisor.begin_run(
            self.loop.now(),
            self.run_gathering.newest,
            attempt=state.attempt,
            ran_s=(state.continued or {}).get("ran_s", 0.0),
            restarts=state.restarts,
        )
        self._require(await self.loop.run_alongside(self._connect_all(self.plan.nodes)))
        await self.loop.run_alongside(self.startup.find_code(self.plan.nodes))
        self.startup.preload(self.plan.nodes)
        await self.startup.hold_ports(self.plan.nodes)
        for finding in await self.startup.preflight():
            self.record(Warned(message=f"{finding.node}: {finding.what}; {finding.fix}"))
        for warning in await self.loop.run_alongside(self.startup.send_code(self.plan.nodes)):
            self.record(Warned(message=warning))
        await self.startup.prepare(self.plan.nodes)
        await self._await_preload(self.plan.nodes)
        number = self.run_writer.state.attempt + 1  # not 1 for a run that its scheduler requeued
        await self._start(number, tuple(task.id for task in self.plan.tasks))

    async def _connect_all(self, nodes: Sequence[NodePlan]) -> Mapping[str, SetupError]:
        """Connect to `nodes` at once; return node → error, for those that cannot be reached."""
        results = await asyncio.gather(*map(self.connect, nodes), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, SetupError):
                raise result
        found = zip((node.name for node in nodes), results, strict=True)
        return {node: result for node, result in found if isinstance(result, SetupError)}

    def _require(self, errors: Mapping[str, SetupError]) -> None:
        """Raise `errors` as one; where the supervisor has the job start again, that counts."""
        if errors and all(isinstance(error, NodeLostError) for error in errors.values()):
            reasons = {node: error.message for node, error in errors.items()}
            is_lost = any(isinstance(error, NoPlaceError) for error in errors.values())
            self.supervisor.nodes_unreached(reasons, self.loop.now(), is_lost=is_lost)
        NodeLostError.raise_all([*errors.values()])

    async def _await_preload(self, nodes: Sequence[NodePlan]) -> None:
        if self.plan.preload:
            self.run_writer.wait_for(f"{self.plan.preload[0]} to be imported")
            await self.startup.await_preload(nodes, is_lost=self._lost.__contains__)
            self.run_writer.wait_for(None)

    async def run_restarts(self) -> None:
        """Carry out the restarts that the supervisor orders, until RunOver is raised."""
        supervisor, due_alone = self.supervisor, self.due_alone
        while True:
            await self.loop.until(lambda: supervisor.next_attempt is not None or due_alone != [])
            if (again := supervisor.next_attempt) is not None:
                await self._restart(again)
            else:
                await self._restart_alone(due_alone.pop(0))

    def lose(self, node: str, reason: str) -> None:
        """Report to the supervisor that the node's agent is gone; once for each connection."""
        if node in self._lost:
            self.returning.note_broken(node, reason)
            return
        self._lost.add(node)
        self.supervisor.node_lost(node, reason, self.loop.now())
        if self.supervisor.is_spare(node):  # no restart has to wait for it
            self._give_up(node, reason)

    async def leave(self, node: str, signal: str) -> None:
        """Report to the supervisor that the node is taken away soon, and why if that is known."""
        if node not in self._lost | self._leaving:
            self._leaving.add(node)
            why = await self.hub.explain(node) or f"{node} is taken away ({signal})"
            self.hub.put(lambda: self.supervisor.node_leaving(node, why, self.loop.now()))

    def drop(self, node: str) -> None:
        """Note that the supervisor has given up the node's agent: nothing is sent to it."""
        self._lost.add(node)

    async def _start(self, number: int, members: tuple[TaskId, ...]) -> None:
        to_start = self.supervisor.begin(number, members)
        self.due_alone.clear()
        # Tasks that the user starts by hand restore the same state as the others.
        by_hand = [task.id for task in self.plan.by_hand if self.hub.uses_run_folder(task.node)]
        step = await self.loop.run_alongside(
            self.run_gathering.put_state_back([*to_start, *by_hand])
        )
        self.run_gathering.follow_chief(self.supervisor.gang.chief)
        self._order_start(number, members, to_start, step)

    def _order_start(
        self, number: int, members: Sequence[TaskId], tasks: Sequence[TaskId], step: int | None
    ) -> None:
        """Order the start of `tasks` that are still to start after the state was put back."""
        if due := self.supervisor.order(tasks, number, self.loop.now()):
            self.startup.start_tasks(number, members, only=due, restored_step=step)

    async def _restart(self, again: NextAttempt) -> None:
        await self.loop.pause(self.loop.now() + again.delay_s)
        await self._part_from_leaving()
        await self._reconnect()
        if any(node.capabilities.makes_nodes for node in self.plan.nodes):
            for sentence in await self.loop.run_alongside(self.hub.repair()):
                self.record(Warned(message=sentence))
        if again.fresh_ports and self.supervisor.next_attempt is again:
            connected = [node for node in self.plan.nodes if node.name not in self._lost]
            await self.startup.hold_ports(connected, is_lost=self._lost.__contains__)
            await self._reconnect()
        if self.supervisor.next_attempt is again:  # else the run ends, or another gang is to start
            await self._start(again.number, again.members)

    async def _restart_alone(self, order: StartAlone) -> None:
        await self._part_from_leaving()
        await self._reconnect()
        if order.task == self.supervisor.gang.chief:  # it continues from what it saved last
            gather = self.run_gathering.gather_latest(others_train=True)
            for event in await self.loop.run_alongside(gather):
                self.record(event)
        members = tuple(member.id for member in self.supervisor.gang)
        put_back = self.run_gathering.put_state_back([order.task])
        try:
            step = await self.loop.run_alongside(put_back)
        except SetupError as error:
            task, number = str(order.task), order.attempt
            self.supervisor.start_failed(task, number, error.message, self.loop.now())
        else:
            self._order_start(order.attempt, members, [order.task], step)

    async def _part_from_leaving(self) -> None:
        """Part from nodes that are taken away, whose tasks have ended: they count as lost."""
        leaving, self._leaving = self._leaving, set()
        for node in sorted(leaving):
            self._lost.add(node)
            await self.loop.run_alongside(self.hub.part_from(node))

    async def _reconnect(self) -> None:
        """Give lost nodes a new agent; once it answers, no old task lives on the node.

        A node where that fails is tried once more after the lease of its old agent has ended:
        until then the old agent itself may be the reason.
        """
        waited = set[str]()
        while lost := self._lost - self._given_up:
            node = next(node for node in self.plan.nodes if node.name in lost)
            self.run_writer.wait_for(f"the agent of {node.name}")
            try:
                await self._replace_agent(node)
                self.supervisor.node_back(node.name, self.loop.now())
            except PortInUseError:
                raise
            except SetupError as error:
                is_reached = node.name not in self._lost  # then the old agent is not the reason
                if is_reached or node.name in waited or not await self._await_lease(node.name):
                    self._give_up(node.name, error.message)
                waited.add(node.name)

    async def _replace_agent(self, node: NodePlan) -> None:
        """Give a lost node a new agent, set up like the old one; raises SetupError."""
        await self.loop.run_alongside(self._connect_with_code(node))
        self.startup.preload([node])
        await self.startup.hold_ports([node], is_lost=self._lost.__contains__)
        if node.capabilities.in_containers:  # the new one lacks what prepare made in the old one
            await self.startup.prepare([node], is_lost=self._lost.__contains__)
        await self._await_preload([node])
        if node.name in self._lost:
            raise NodeLostError(f"the new agent of {node.name} was lost at once")

    async def _connect_with_code(self, node: NodePlan) -> None:
        await self.connect(node)
        await self.startup.find_code([node])
        await self.startup.send_code([node], again=True)
        self._leaving.discard(node.name)
        self._lost.discard(node.name)  # here, before an input can report it lost again

    async def _await_lease(self, node: str) -> bool:
        """Wait until nothing can live on the node; return whether that was necessary."""
        now, until = self.loop.now(), self.hub.fenced_until(node)
        if until <= now:
            return False
        self.run_writer.wait_for(f"the lease of {node}: its tasks may run for {until - now:.0f} s")
        await self.loop.pause(until)
        return True

    def _give_up(self, node: str, why: str) -> None:
        """Report to the supervisor that nothing can live on the node any more.

        A gang that goes on without it may grow again: the node is tried again in the background.
        """
        self._lost.add(node)
        self._given_up.add(node)
        self.supervisor.node_gone(node, why, self.loop.now())
        if can_resize(self.plan):
            self.returning.give_up(node)

    def _take_back(self, node: str) -> None:
        """Report to the supervisor that a node that was given up is set up again."""
        self._given_up.discard(node)
        self._lost.discard(node)
        self.supervisor.node_back(node, self.loop.now())

    def _note_lost_again(self, node: str, why: str) -> None:
        self.record(NodeLost(node=node, reason=why))


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
