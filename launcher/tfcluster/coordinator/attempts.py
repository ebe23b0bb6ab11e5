"""Starts of attempts on connected nodes, and the return of nodes that an attempt did without."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tfcluster.coordinator.gathering import RunGathering
from tfcluster.coordinator.loop import Loop
from tfcluster.coordinator.startup import Startup
from tfcluster.errors import NodeLostError, PortInUseError, PrepareError, SetupError
from tfcluster.node_loss import LossNature, NodeLoss
from tfcluster.nodes.hub import Hub
from tfcluster.plans.plan import NodePlan, Plan, TaskId
from tfcluster.rundir.events import Event, Hint, NodeLost, NodesAllocated, Warned
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.states import Status
from tfcluster.supervision.decisions import NextAttempt, StartAlone
from tfcluster.supervision.membership import can_resize
from tfcluster.supervision.restart_policy import chief_among
from tfcluster.supervision.supervisor import Supervisor

FIRST_PAUSE_S: Final = 2.0
LONGEST_PAUSE_S: Final = 30.0
_POLL_S: Final = 0.2
_UNUSED: Final = NodeLoss("the gang does without it")


def pauses() -> Iterator[float]:
    """Yield the pauses in seconds between two tries to reach a node, which double up to a limit."""
    pause_s = FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)


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
        nodes = [node for node in self.plan.nodes if node.name not in self._lost]
        await self.loop.run_alongside(self.startup.find_code(nodes))
        self.startup.preload(nodes)
        await self.startup.hold_ports(nodes)
        for finding in await self.startup.preflight(nodes):
            self.record(Warned(message=f"{finding.node}: {finding.what}; {finding.fix}"))
        for warning in await self.loop.run_alongside(self.startup.send_code(nodes)):
            self.record(Warned(message=warning))
        await self.startup.prepare(nodes)
        await self._await_preload(nodes)
        members = self.supervisor.membership.members
        if self.run_writer.state.attempt:  # its scheduler has started it again
            gather = self.run_gathering.gather_left(chief_among(self.plan, members))
            for event in await self.loop.run_alongside(gather):
                self.record(event)
        await self._start(self.run_writer.state.attempt + 1, members)

    async def _connect_all(self, nodes: Sequence[NodePlan]) -> Mapping[str, SetupError]:
        """Connect to `nodes` at once; return node → error, for those that cannot be reached."""
        results = await asyncio.gather(*map(self.connect, nodes), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, SetupError):
                raise result
        found = zip((node.name for node in nodes), results, strict=True)
        return {node: result for node, result in found if isinstance(result, SetupError)}

    def _require(self, errors: Mapping[str, SetupError]) -> None:
        """Raise `errors` as one, unless the run can start without these nodes.

        Where the supervisor has the job start again, that counts.
        """
        if errors and all(isinstance(error, NodeLostError) for error in errors.values()):
            losses = {node: _loss_of(error) for node, error in errors.items()}
            self.supervisor.nodes_unreached(losses, self.loop.now())
            if errors.keys() <= self.supervisor.gone.keys():
                for node in losses:
                    self._give_up(node)
                return
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

    def lose(self, node: str, loss: NodeLoss) -> None:
        """Report to the supervisor that the node's agent is gone; once for each connection."""
        if node in self._lost:
            self.returning.note_broken(node, loss)
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

    async def _start(self, number: int, members: tuple[TaskId, ...]) -> None:
        to_start = self.supervisor.begin(number, members)
        self.due_alone.clear()
        # Tasks that the user starts by hand restore the same state as the others.
        by_hand = [task.id for task in self.plan.by_hand if self.hub.uses_run_folder(task.node)]
        step = await self.loop.run_alongside(self._put_state_back([*to_start, *by_hand]))
        self.run_gathering.follow_chief(self.supervisor.gang.chief)
        self._order_start(number, members, to_start, step)

    async def _put_state_back(self, tasks: Sequence[TaskId]) -> int | None:
        try:
            return await self.run_gathering.put_state_back(tasks)
        finally:  # it may have found damaged checkpoints
            for event in self.run_gathering.take_events():
                self.hub.put(partial(self.record, event))

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
            for event in await self.loop.run_alongside(self.run_gathering.gather_missed()):
                self.record(event)
        if any(node.capabilities.makes_nodes for node in self.plan.nodes):
            for sentence in await self.loop.run_alongside(self.hub.repair()):
                self.record(Warned(message=sentence))
        if again.fresh_ports and self._is_next(again):
            connected = [node for node in self.plan.nodes if node.name not in self._lost]
            await self.startup.hold_ports(connected, is_lost=self._lost.__contains__)
            await self._reconnect(again)
        if self._is_next(again):
            await self._start(again.number, again.members)

    async def _restart_alone(self, order: StartAlone) -> None:
        await self._part_from_leaving()
        await self._reconnect(None, only=self.plan.task(order.task).node)
        if order.task == self.supervisor.gang.chief:  # it continues from what it saved last
            gather = self.run_gathering.gather_latest(others_train=True)
            for event in await self.loop.run_alongside(gather):
                self.record(event)
        members = tuple(member.id for member in self.supervisor.gang)
        try:
            step = await self.loop.run_alongside(self._put_state_back([order.task]))
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

    async def _reconnect(self, again: NextAttempt | None, *, only: str = "") -> None:
        """Give the lost nodes, or `only` this one, new agents for the attempt `again`.

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

    def _is_next(self, again: NextAttempt | None) -> bool:
        """Return whether the supervisor still wants this attempt, or with None no other one."""
        return self.supervisor.next_attempt is again

    async def _pause_for(self, again: NextAttempt | None, until: float) -> None:
        """Pause until that moment, at most as long as the attempt is wanted."""
        await self.loop.until(
            lambda: self.loop.now() >= until or not self._is_next(again), at=until
        )

    def _awaited(self, only: str) -> list[NodePlan]:
        """Return the lost nodes to reconnect; those that the next attempt does without are left."""
        for name in sorted(self._lost - self._given_up):
            if not (only or self.supervisor.membership.uses(name)):
                self.supervisor.node_gone(name, _UNUSED, self.loop.now())
                self._give_up(name)
        lost = self._lost - self._given_up
        return [node for node in self.plan.nodes if node.name in lost and only in ("", node.name)]

    async def _try(self, node: NodePlan, since: float | None) -> list[float]:
        """Try to give a lost node a new agent; the first such try, if not this, was at `since`.

        Return the moments at which another try must be made; none if there is to be no other one.
        """
        name, began = node.name, self.loop.now()
        self.run_writer.wait_for(f"the agent of {name}")
        try:
            await self._replace_agent(node)
        except PortInUseError:
            raise
        except SetupError as error:
            # Its old agent may be the reason, unless the node was reached.
            fence = self.hub.fenced_until(name) if name in self._lost else 0.0
            end = max(began if since is None else since, fence) + self.supervisor.patience_s(name)
            self._lost.add(name)
            loss = _loss_of(error)
            is_hopeless = isinstance(error, PrepareError) or loss.nature is LossNature.NO_PLACE
            if began >= end or is_hopeless:
                self._note_unreached(name, loss)
                return []
            now = self.loop.now()
            what = (
                f"the lease of {name}: its tasks may run for {fence - now:.0f} s"
                if fence > now
                else f"{name} to answer: it is tried for {max(0.0, end - now):.0f} s more"
            )
            self.run_writer.wait_for(what)
            if since is None:
                self.record(Hint(message=f"{error.message}; waiting for {what}"))
            return [at for at in (fence, end) if at > began]
        self.supervisor.node_back(name, self.loop.now())
        return []

    async def _replace_agent(self, node: NodePlan) -> None:
        """Give a lost node a new agent, set up like the old one; raises SetupError."""
        await self.loop.run_alongside(self._connect_with_code(node))
        self.startup.preload([node])
        await self.startup.hold_ports([node], is_lost=self._lost.__contains__)
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

    def _note_unreached(self, node: str, loss: NodeLoss) -> None:
        """Report to the supervisor that the next attempt could not reach the node."""
        self.supervisor.node_unreached(node, loss, self.loop.now())
        if node in self.supervisor.gone:
            self._give_up(node)

    def _give_up(self, node: str) -> None:
        """Let no attempt wait any more for a node that is gone for the supervisor.

        A gang that goes on without it may grow again: the node is tried again in the background.
        """
        self._lost.add(node)
        self._given_up.add(node)
        if can_resize(self.plan):
            self.returning.give_up(node)

    def _take_back(self, node: str) -> None:
        """Report to the supervisor that a node that was given up is set up again."""
        self._given_up.discard(node)
        self._lost.discard(node)
        self.supervisor.node_back(node, self.loop.now())

    def _note_lost_again(self, node: str, loss: NodeLoss) -> None:
        self.record(NodeLost(node=node, reason=loss.reason, nature=loss.nature))


def _loss_of(error: SetupError) -> NodeLoss:
    """Return why a node is lost that an attempt could not reach."""
    if isinstance(error, NodeLostError):
        return NodeLoss(error.message, error.nature)
    return NodeLoss(error.message)


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
    note_lost: Callable[[str, NodeLoss], None]
    """Called in the loop with a node that answered but cannot be used."""
    _given_up: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    _broken: dict[str, NodeLoss] = field(default_factory=dict)
    """The nodes that were lost again while they were set up."""

    @property
    def hub(self) -> Hub:
        return self.startup.hub

    def give_up(self, node: str) -> None:
        """Try from now on to reach `node`."""
        self._given_up.put_nowait(node)

    def note_broken(self, node: str, loss: NodeLoss) -> None:
        """Note that the agent of a node, which may be one of these, is lost."""
        self._broken[node] = loss

    async def follow(self) -> None:
        """Try to reach the nodes, each independently of the others, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._bring_back(await self._given_up.get()))

    async def _bring_back(self, node: str) -> None:
        """Try until the node is set up."""
        planned, least_s = self.startup.plan.node(node), 0.0
        for pause_s in pauses():
            await asyncio.sleep(max(pause_s, least_s))
            self._broken.pop(node, None)
            least_s = 0.0
            with contextlib.suppress(SetupError):
                await self.connect(planned)
                if await self._is_set_up(planned):
                    return
                least_s = self.startup.plan.supervision.grow_every_s

    async def _is_set_up(self, node: NodePlan) -> bool:
        """Set up a node that answers; return whether that succeeded. Else its agent is ended."""
        try:
            await self._set_up(node)
        except SetupError as error:
            loss = _loss_of(error)
            self.hub.put(lambda: self.note_lost(node.name, loss))
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
        await startup.preflight([node])
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

    def _why(self, node: str) -> NodeLoss:
        return self._broken.get(node, NodeLoss("its connection ended"))

    async def _until(self, condition: Callable[[], bool], *, at: float | None = None) -> None:
        """Wait for `condition`, while the run's loop sends the orders and handles the answers."""
        now = asyncio.get_running_loop().time
        self.hub.put(lambda: None)  # wakes the loop, which sends the orders
        while True:
            if condition() or (at is not None and now() >= at):
                return
            await asyncio.sleep(_POLL_S)
