"""The steps before training: ports, preload, preflight, code, prepare, start of the tasks.

`Startup` sends the orders for each step to the agents and waits for their answers; `StartOptions`
says which steps to leave out.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from tfcluster.agent.error_text import describe_error
from tfcluster.agent.tasks.preloader import IMPORT_S
from tfcluster.coordinator.gathering import RunGathering
from tfcluster.errors import SurroundingsError
from tfcluster.nodes import code_sync, orders
from tfcluster.nodes.hub import Hub, Message
from tfcluster.nodes.orders import Answers, AssignedResources, Until, never
from tfcluster.nodes.reports import PREPARE
from tfcluster.plan.plan import NodePlan, Plan, TaskId
from tfcluster.plan.preloading import preload_on
from tfcluster.preflight import probes
from tfcluster.preflight.probes import NodeProbes
from tfcluster.preflight.rules import Finding, PreflightReport
from tfcluster.rundir import journal
from tfcluster.rundir.chaos import Fault
from tfcluster.rundir.paths import RunPaths
from tfcluster.wire.file_transfer import Sent


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Steps to leave out, faults to rehearse."""

    runs_preflight: bool = True
    """At the nodes, before anything is started on them; not with ``--no-preflight``."""
    prepares: bool = True
    """Not with ``--no-prepare``."""
    gathers: bool = True
    """Not with ``--no-gather``."""
    faults: Sequence[Fault] = ()
    """Of ``--chaos``."""


_PRELOADED = ("preload_ready", "preload_failed")


@dataclass(slots=True)
class Startup:
    """Sends orders and waits for their answers; raises SurroundingsError for a bad one."""

    plan: Plan
    paths: RunPaths
    run_gathering: RunGathering
    hub: Hub
    until: Until
    announce: Callable[[Mapping[str, int]], None]
    """Told each task's port just before the first start."""
    wait_for: Callable[[str | None], None] = lambda what: None
    """Told what is waited for, once that takes long; None: nothing any more."""
    start_options: StartOptions = field(default_factory=StartOptions)
    _guards: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Node → variables that keep gRPC between the tasks off the proxies there."""
    _dealt: dict[TaskId, AssignedResources] = field(default_factory=dict)
    """Of tasks that share a machine which the plan knew nothing of."""
    _is_announced: bool = False

    async def hold_ports(
        self, nodes: Iterable[NodePlan], *, is_lost: Callable[[str], bool] = never
    ) -> None:
        """Those of the nodes' tasks, for as long as their agents live; again: others, if chosen.

        Of a node that `is_lost` meanwhile no answer comes.
        """
        if self.plan.kind == "plain":
            return
        names = [node.name for node in nodes]
        for name in names:
            self.hub.forget(name, "ports_held", "port_taken")
            self.hub.send(name, orders.hold_ports(self.plan, name))
        kinds = ("ports_held", "port_taken")
        await self._answers.require(names, *kinds, what="to hold its ports", is_lost=is_lost)
        for name in names:
            reply = self.hub.answer(name, kinds)
            if reply is not None and reply["type"] == "port_taken":
                raise orders.port_error(reply)

    def preload(self, nodes: Iterable[NodePlan]) -> None:
        """Have what their tasks import be imported once, while other steps go on."""
        for node in nodes:
            if (ahead := preload_on(self.plan, node.name)) is not None:
                self.hub.forget(node.name, *_PRELOADED)
                order = orders.preload(ahead, node, self.hub.site(node.name))
                self.hub.send(node.name, order)

    async def preloaded(self, nodes: Iterable[NodePlan], *, is_lost: Callable[[str], bool]) -> None:
        """Wait for it; where it failed, or the node `is_lost`, tasks start cold."""
        names = [node.name for node in nodes if preload_on(self.plan, node.name) is not None]
        await self._answers.require(
            names,
            *_PRELOADED,
            what="to import for its tasks",
            work_s=IMPORT_S,
            is_lost=is_lost,
        )

    async def find_code(self, nodes: Iterable[NodePlan]) -> None:
        """Over a shared file system a node may see the workdir: it works in it."""
        await code_sync.find(self.plan, self.hub, nodes)

    async def send_code(self, nodes: Iterable[NodePlan], *, again: bool = False) -> Sequence[str]:
        """Send a copy of the workdir to each node that does not see it; return warnings about
        what is left out. Raises SurroundingsError.

        `again`: to a node that was lost; where the copy is still there it stays as it is, with
        what tasks have written into it.
        """
        far = [node for node in nodes if not self.hub.site(node.name).sees_our_code]
        if not far:
            return ()
        snapshot = await asyncio.to_thread(
            code_sync.snapshot,
            Path(self.plan.workdir),
            self.plan.include,
            withheld=self.plan.withheld,
        )
        await asyncio.gather(
            *(self._send_code(n.name, snapshot.files, unless_there=again) for n in far)
        )
        return tuple(snapshot.warnings())

    async def _send_code(self, node: str, files: Sequence[Sent], *, unless_there: bool) -> None:
        site = self.hub.site(node)
        into = site.folder(self.plan.node(node).workdir)
        try:
            await self.hub.files(node).send_tree(into, files, keep=True, unless_there=unless_there)
        except OSError as error:
            raise SurroundingsError(
                f"the code cannot be copied to {node}: {describe_error(error)}",
                fix=f"runtime.hosts.{node}.workdir names another folder for it",
            ) from error

    async def preflight(self) -> Sequence[Finding]:
        """Look at all nodes at once; what does not stop the run. What was seen is in the folder.

        Raises PreflightError for what does.
        """
        names = [node.name for node in self.plan.nodes]
        far = [name for name in names if self.hub.site(name).is_remote]
        for name in far:  # a login there may have a proxy of which nobody here knows
            self._guards[name] = probes.guards_unseen(self.plan)
        if not self.start_options.runs_preflight:
            return ()
        if far:
            ports = orders.attempt_of(self.plan, 1, (), filter(None, self._held())).ports
            task = NodeProbes(self.plan, self.paths, self.hub, self.until)
            look = await task.look(names, ports)
        else:
            look = await self._look_here()
        journal.write_json(self.paths.preflight, look.to_json())
        self._guards.update({one.node: probes.guards(self.plan, one) for one in look.seen})
        for one in look.seen:
            if one.node in far:
                self._dealt.update(orders.deal(self.plan, one))
        look.require()
        return look.told

    async def _look_here(self) -> PreflightReport:
        """A dead file system or a slow server of names keeps its thread, which is left behind
        then, and nobody who wants the run to end."""
        loop, looking = asyncio.get_running_loop(), Future[PreflightReport]()

        def look() -> None:
            try:
                looking.set_result(probes.probe_this_node(self.plan))
            except BaseException as error:
                looking.set_exception(error)
            with contextlib.suppress(RuntimeError):  # the run is over, and so is its loop
                loop.call_soon_threadsafe(self.hub.put, lambda: None)

        threading.Thread(target=look, daemon=True).start()
        await self.until(looking.done)
        return looking.result()

    def _held(self) -> list[Message | None]:
        return [self.hub.answer(node.name, ["ports_held"]) for node in self.plan.nodes]

    async def prepare(
        self, nodes: Iterable[NodePlan], *, is_lost: Callable[[str], bool] = never
    ) -> None:
        """Once per node, before anything of the gang is started there; raises PrepareError. Of a
        node that `is_lost` meanwhile nothing is heard."""
        if not self.start_options.prepares:
            return
        ends = (f"{PREPARE} task_exited", f"{PREPARE} start_failed")
        begins = (f"{PREPARE} task_started", *ends)
        names = [node.name for node in nodes if node.name in self.plan.prepare]
        for node in names:
            self.hub.forget(node, *begins)
            command = self.plan.prepare[node]
            self.hub.send(node, orders.start_prepare(command, self.hub.site(node)))
        what = "to run job.prepare"
        await self._answers.require(names, *begins, what=what, is_lost=is_lost)
        for node in names:  # how long it takes is the user's affair
            await self._answers.require([node], *ends, what=what, work_s=None, is_lost=is_lost)
            if (reply := self.hub.answer(node, ends)) is not None:
                orders.check_prepared(node, reply, self.paths.prepare_log(node))

    def start_tasks(
        self,
        number: int,
        members: Sequence[TaskId],
        *,
        only: Sequence[TaskId],
        restored_step: int | None,
    ) -> None:
        """Give the order to start `only`, of an attempt of `members`."""
        attempt = orders.attempt_of(self.plan, number, members, filter(None, self._held()))
        if not self._is_announced:  # an attempt that ended before its start announced nothing
            self._is_announced = True
            self.announce({str(task): port for task, port in attempt.ports.items()})
        for node in dict.fromkeys(self.plan.task(task).node for task in only):
            order = orders.start(
                attempt,
                self.hub.site(node),
                holds_ports=self.hub.holds_ports(node),
                only=only,
                restored_step=restored_step,
                chaos=self.start_options.faults,
                guards=self._guards.get(node, {}),
                dealt=self._dealt,
            )
            self.hub.send(node, order)

    @property
    def _answers(self) -> Answers:
        return Answers(self.hub, self.until, self.wait_for)
