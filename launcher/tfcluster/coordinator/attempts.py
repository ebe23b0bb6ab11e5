"""Starts attempt after attempt as the supervisor wants them, on nodes that have an agent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tfcluster.agent.error_text import reason_of
from tfcluster.checkpoints.restore import PutBack
from tfcluster.coordinator.gathering import RunGathering
from tfcluster.coordinator.loop import Loop
from tfcluster.coordinator.startup import Startup
from tfcluster.errors import NodeLostError, PortInUseError, SurroundingsError
from tfcluster.nodes.hub import Hub
from tfcluster.plan.plan import NodePlan, Plan, TaskId, TaskPlan
from tfcluster.rundir.events import Event, Warned
from tfcluster.rundir.journal import Journal
from tfcluster.supervision.decisions import Again, StartAlone
from tfcluster.supervision.restart_policy import chief_among
from tfcluster.supervision.supervisor import Supervisor


@dataclass(slots=True)
class Attempts:
    """The tasks' starts. Every method raises Over when the run has its outcome."""

    supervisor: Supervisor
    startup: Startup
    journal: Journal
    loop: Loop
    connect: Callable[[NodePlan], Coroutine[Any, Any, None]]
    """Reach a node's agent and listen to it; raises SurroundingsError."""
    record: Callable[[Event], None]
    due_alone: list[StartAlone] = field(default_factory=list)
    """Tasks to start while the others go on."""
    _lost: set[str] = field(default_factory=set)
    _gone: set[str] = field(default_factory=set)
    """Lost nodes that did not come back."""

    @property
    def plan(self) -> Plan:
        return self.startup.plan

    @property
    def hub(self) -> Hub:
        return self.startup.hub

    @property
    def run_gathering(self) -> RunGathering:
        return self.startup.run_gathering

    async def first(self) -> None:
        """Agents, ports, prepare, attempt 1: raises SurroundingsError."""
        here = [node for node in self.plan.nodes if node.backend == "local"]
        await self._connect_all(here)  # not to be called off: an agent half started would stay
        far = [node for node in self.plan.nodes if node not in here]
        if far:
            await self.loop.meanwhile(self._connect_all(far))
        await self.loop.meanwhile(self.startup.find_code(self.plan.nodes))
        self.startup.preload(self.plan.nodes)
        await self.startup.hold_ports(self.plan.nodes)
        for finding in await self.startup.preflight():
            self.record(Warned(message=f"{finding.node}: {finding.what}; {finding.fix}"))
        for warning in await self.loop.meanwhile(self.startup.send_code(self.plan.nodes)):
            self.record(Warned(message=warning))
        await self.startup.prepare(self.plan.nodes)
        await self._await_imports(self.plan.nodes)
        await self._start(1, tuple(task.id for task in self.plan.tasks))

    async def _connect_all(self, nodes: Sequence[NodePlan]) -> None:
        """All at once; raises SurroundingsError for all that could not be reached."""
        connecting = map(self.connect, nodes)
        results = await asyncio.gather(*connecting, return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        errors = [failure for failure in failures if isinstance(failure, SurroundingsError)]
        if len(errors) != len(failures):
            raise next(failure for failure in failures if failure not in errors)
        NodeLostError.raise_all(errors)

    async def _await_imports(self, nodes: Sequence[NodePlan]) -> None:
        """Those that a process of each node does for its tasks."""
        if self.plan.preload:
            self.journal.wait_for(f"the import of {self.plan.preload[0]}")
            await self.startup.await_preload(nodes, is_lost=self._lost.__contains__)
            self.journal.wait_for(None)

    async def keep_going(self) -> None:
        """Start again what the supervisor wants, for ever."""
        wants, alone = self.supervisor, self.due_alone
        while True:
            await self.loop.until(lambda: wants.again is not None or alone != [])
            if (again := wants.again) is not None:
                await self._start_again(again)
            else:
                await self._start_alone(alone.pop(0))

    def lose(self, node: str, reason: str) -> None:
        """Its agent is gone; told once."""
        if node not in self._lost:
            self._lost.add(node)
            self.supervisor.node_lost(node, reason, self.loop.now())

    def drop(self, node: str) -> None:
        """The supervisor has given up its agent: nothing is to be sent to it any more."""
        self._lost.add(node)

    async def _start(self, number: int, members: tuple[TaskId, ...]) -> None:
        to_start = self.supervisor.begin(number, members)
        self.due_alone.clear()
        # Who is started by hand restores what all others do.
        mine = [task.id for task in self.plan.by_hand if self.hub.is_here(task.node)]
        restored = await self.loop.meanwhile(self.run_gathering.put_state_back([*to_start, *mine]))
        self.run_gathering.heed(chief_among(self.plan, members))
        self._order(number, members, to_start, restored)

    def _order(
        self, number: int, members: Sequence[TaskId], tasks: Sequence[TaskId], restored: PutBack
    ) -> None:
        """What has become of the run while the state was put back is known by now."""
        if wanted := self.supervisor.order(tasks, number, self.loop.now()):
            self.startup.start_tasks(number, members, only=wanted, restored_step=restored.step)

    async def _start_again(self, again: Again) -> None:
        await self.loop.pause(self.loop.now() + again.delay_s)
        await self._reconnect()
        if self.plan.images:
            for sentence in await self.loop.meanwhile(self.hub.repair()):
                self.record(Warned(message=sentence))
        if again.fresh_ports and self.supervisor.again is again:
            there = [node for node in self.plan.nodes if node.name not in self._lost]
            await self.startup.hold_ports(there, is_lost=self._lost.__contains__)
            await self._reconnect()
        if self.supervisor.again is again:  # else the run ends, or another gang is to start
            await self._start(again.number, again.members)

    async def _start_alone(self, wanted: StartAlone) -> None:
        await self._reconnect()
        if wanted.task == self.supervisor.chief:  # what it saved last is where it goes on
            for event in await self.loop.meanwhile(
                self.run_gathering.bring_home(others_train=True)
            ):
                self.record(event)
        members = tuple(member.id for member in self.supervisor.gang)
        try:
            restored = await self.loop.meanwhile(self.run_gathering.put_state_back([wanted.task]))
        except SurroundingsError as error:
            task, number = str(wanted.task), wanted.attempt
            self.supervisor.start_failed(task, number, error.message, self.loop.now())
        else:
            self._order(wanted.attempt, members, [wanted.task], restored)

    async def _reconnect(self) -> None:
        """Lost nodes get a new agent; no task of before lives there when it answers.

        A node that cannot get one is tried once more when the lease of its former agent is over:
        until then it may be that very agent which stands in the way.
        """
        waited = set[str]()
        while lost := [node for node in self.plan.nodes if node.name in self._lost - self._gone]:
            node = lost[0]
            self.journal.wait_for(f"the agent of {node.name}")
            try:
                await self._renew(node)
            except PortInUseError:
                raise
            except SurroundingsError as error:
                is_reached = node.name not in self._lost  # then nothing of before stands in the way
                if is_reached or node.name in waited or not await self._await_lease(node.name):
                    self._give_up(node.name, error)
                waited.add(node.name)

    async def _renew(self, node: NodePlan) -> None:
        """A new agent for a lost node, with all that the one before it had; raises
        SurroundingsError."""
        await self.loop.meanwhile(self._reach(node))
        self.startup.preload([node])
        await self.startup.hold_ports([node], is_lost=self._lost.__contains__)
        if node.container is not None:  # with the one before went what it had prepared
            await self.startup.prepare([node], is_lost=self._lost.__contains__)
        await self._await_imports([node])
        if node.name in self._lost:
            raise NodeLostError(f"the new agent of {node.name} went away at once")

    async def _reach(self, node: NodePlan) -> None:
        await self.connect(node)
        await self.startup.find_code([node])
        await self.startup.send_code([node], again=True)
        self._lost.discard(node.name)  # at once: it can be lost again before anyone looks

    async def _await_lease(self, node: str) -> bool:
        """Until nothing can live there; whether that had to be waited for."""
        now, until = self.loop.now(), self.hub.fenced_until(node)
        if until <= now:
            return False
        self.journal.wait_for(f"the lease of {node}: its tasks may live {until - now:.0f} s")
        await self.loop.pause(until)
        return True

    def _give_up(self, node: str, error: SurroundingsError) -> None:
        """A node does not come back, and nothing can live there: go on without it, or end."""
        self._lost.add(node)
        self._gone.add(node)
        self.supervisor.gone(node, error.message, self.loop.now())


LOOK_EVERY_S: Final = 2.0
DIAL_S: Final = 2.0
"""How long a machine may take to answer."""
_SHOWN = 3


class ExternalPeers:
    """The cluster's tasks that somebody else starts."""

    def __init__(self, plan: Plan, wait_for: Callable[[str | None], None]) -> None:
        """`wait_for` is told what is waited for, None: nothing any more."""
        cluster = [task for task in plan.elsewhere if task.in_cluster]
        self._peers = cluster if plan.kind == "training" else []
        self._wait_for, self._absent = wait_for, tuple[str, ...]()
        self.ports: Mapping[str, int] = {}
        """Task → port, of those for which one was chosen at the start."""

    def absent(self) -> Sequence[str]:
        """Those that did not answer the last time, and how."""
        return self._absent

    async def follow(self, is_waiting: Callable[[], bool]) -> None:
        """Look again and again until cancelled, as long as a task here `is_waiting`."""
        while self._peers:
            absent = await self._look() if is_waiting() else ()
            if absent != self._absent:
                self._absent = absent
                self._wait_for(_in_short(absent) or None)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self) -> tuple[str, ...]:
        dials = (_dial(task, self.ports.get(str(task.id), task.port)) for task in self._peers)
        found = await asyncio.gather(*dials)
        return tuple(words for words in found if words)


async def _dial(task: TaskPlan, port: int) -> str:
    """What is wrong with the way to `task`; empty where something listens there."""
    where = f"{task.id} at {task.host}:{port}"
    try:
        async with asyncio.timeout(DIAL_S):
            _, writer = await asyncio.open_connection(task.host.strip("[]"), port)
    except ConnectionRefusedError:
        return f"{where}: nothing listens there yet"
    except TimeoutError:
        return f"{where}: no answer; is the machine up, does a firewall stand before it?"
    except (OSError, UnicodeError) as error:
        return f"{where}: {reason_of(error)}"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""


def _in_short(absent: Sequence[str]) -> str:
    more = f" and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else ""
    return ", ".join(absent[:_SHOWN]) + more
