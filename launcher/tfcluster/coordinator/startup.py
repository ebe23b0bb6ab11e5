"""The steps before training: ports, preload, preflight, code, prepare, start of the tasks."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from tfcluster.agent import catalogue as msg
from tfcluster.agent.error_text import describe_error
from tfcluster.coordinator.gathering import RunGathering
from tfcluster.coordinator.starter import Launch
from tfcluster.errors import SetupError
from tfcluster.nodes import code_sync, orders, shared_workdirs
from tfcluster.nodes.hub import Hub
from tfcluster.nodes.orders import PORT_REPLIES, Answers, AssignedResources, Until, never
from tfcluster.nodes.probe_answers import ProbeAnswer
from tfcluster.nodes.reports import END_REPLIES, PREPARE
from tfcluster.plans.plan import NodePlan, Plan, TaskId
from tfcluster.plans.preloading import preload_on
from tfcluster.plans.tf_config import Attempt
from tfcluster.preflight import probes
from tfcluster.preflight.rules import Finding, PreflightReport
from tfcluster.rundir import run_writer
from tfcluster.rundir.paths import RunPaths
from tfcluster.wire.file_sending import Sent

_PRELOAD_REPLIES = (msg.PreloadReady, msg.PreloadFailed)


@dataclass(slots=True)
class Startup:
    """The startup steps of a run.

    Each sends orders to the agents and waits for the answers; a step that fails on a node raises
    SetupError.
    """

    launch: Launch
    paths: RunPaths
    run_gathering: RunGathering
    hub: Hub
    until: Until
    announce: Callable[[Plan], None]
    """Called just before the first start with the plan, now with every host and port."""
    wait_for: Callable[[str | None], None] = lambda what: None
    """Called with what a long wait is for, and with None when it is over."""
    plan: Plan = field(init=False)
    """The plan, with the host names of all nodes once they are allocated."""
    _proxy_env: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Node → variables that keep gRPC between the tasks off its proxies."""
    _assigned: dict[TaskId, AssignedResources] = field(default_factory=dict)
    """Resources of tasks that share a remote node, which only the probe knows."""
    _probed: dict[str, ProbeAnswer] = field(default_factory=dict)
    _prepared: set[str] = field(default_factory=set)
    """The nodes on which ``job.prepare`` has run."""
    _is_announced: bool = False

    def __post_init__(self) -> None:
        self.plan = self.launch.plan

    def in_background(self, until: Until) -> Startup:
        """Return these steps for nodes that are set up while tasks train: the run does not wait.

        `until`: how each step waits for the agents' answers.
        """
        steps = copy.copy(self)  # what is found out about the nodes is shared
        steps.until, steps.wait_for = until, lambda what: None
        return steps

    async def hold_ports(
        self, nodes: Iterable[NodePlan], *, is_lost: Callable[[str], bool] = never
    ) -> None:
        """Have the nodes' agents hold the ports of their tasks for as long as the agents live.

        They answer with the nodes' addresses on the interface that the spec names, too. A second
        call chooses new ports where the spec leaves the choice. A node that `is_lost` meanwhile is
        not waited for. Raises PortInUseError for a taken port, SetupError without the interface.
        """
        if self.plan.kind == "plain":
            return
        names = [node.name for node in nodes]
        for name in names:
            self.hub.forget(name, *PORT_REPLIES)
            self.hub.send(name, orders.hold_ports(self.plan, name))
        what = "to hold its ports"
        await self._answers.require(names, *PORT_REPLIES, what=what, is_lost=is_lost)
        for name in names:
            if (taken := self.hub.answer(name, msg.PortTaken)) is not None:
                raise orders.port_error(taken)
        self.plan = orders.at_interface(self.plan, self.hub, names)

    def preload(self, nodes: Iterable[NodePlan]) -> None:
        """Have one process per node import what its tasks import, while other steps go on."""
        for node in nodes:
            if (preload := preload_on(self.plan, node.name)) is not None:
                self.hub.forget(node.name, *_PRELOAD_REPLIES)
                order = orders.preload(preload, node, self.hub.site(node.name))
                self.hub.send(node.name, order)

    async def await_preload(
        self, nodes: Iterable[NodePlan], *, is_lost: Callable[[str], bool]
    ) -> None:
        """Wait until `preload` is done; if it failed, or the node `is_lost`, tasks start cold."""
        names = [node.name for node in nodes if preload_on(self.plan, node.name) is not None]
        await self._answers.require(
            names,
            *_PRELOAD_REPLIES,
            what="to preload the tasks' imports",
            work_s=msg.Preload.within_s,
            is_lost=is_lost,
        )

    async def find_code(self, nodes: Iterable[NodePlan]) -> None:
        """Find the nodes that see the workdir over a shared file system; their tasks run in it."""
        await shared_workdirs.find_shared_workdirs(self.plan, self.hub, nodes)

    async def send_code(self, nodes: Iterable[NodePlan], *, again: bool = False) -> Sequence[str]:
        """Send a copy of the workdir to each node that does not see it; return warnings about
        what is left out. Raises SetupError.

        `again`: the node was lost and is back; a copy that still exists is kept as it is, with
        the files that tasks have written into it.
        """
        remote = [node for node in nodes if not self.hub.site(node.name).shares_code]
        if not remote:
            return ()
        snapshot = await asyncio.to_thread(code_sync.snapshot_of, self.plan)
        await asyncio.gather(
            *(self._send_code(n.name, snapshot.files, unless_there=again) for n in remote)
        )
        return tuple(snapshot.warnings())

    async def _send_code(self, node: str, files: Sequence[Sent], *, unless_there: bool) -> None:
        site = self.hub.site(node)
        into = site.folder(self.plan.node(node).workdir)
        try:
            await self.hub.files(node).send_tree(into, files, keep=True, unless_there=unless_there)
        except OSError as error:
            raise SetupError(
                f"cannot copy the code to {node}: {describe_error(error)}",
                fix=f"set runtime.hosts.{node}.workdir to another folder",
            ) from error

    async def preflight(self, nodes: Iterable[NodePlan]) -> Sequence[Finding]:
        """Check the `nodes` that were not checked yet, and whether all that were are alike.

        Without checks, nodes that several tasks share are only asked what there is to divide.
        Return the warnings; the report goes to the run folder. Raises PreflightError if there are
        fatal findings.
        """
        names = [node.name for node in nodes if node.name not in self._probed]
        remote = [name for name in names if self.hub.site(name).is_remote]
        for name in remote:  # a login there may set a proxy that is not known here
            self._proxy_env[name] = probes.default_proxy_env(self.plan)
        if not names:
            return ()
        answers = Answers(self.hub, self.until)
        if not self.launch.options.runs_preflight:
            several = orders.shared_nodes(self.plan)
            if not (shared := [name for name in remote if name in several]):
                return ()
            found, warnings = await probes.probe_shared_nodes(
                self.plan, self.paths, answers, shared
            )
            for answer in found:
                self._probed[answer.node] = answer
                self._assigned.update(orders.assign_resources(self.plan, answer))
            return warnings
        if remote:
            ports, before = orders.held_ports(self.hub, names), [*self._probed.values()]
            report = await probes.probe_nodes(
                self.plan, self.paths, answers, names, ports, before=before
            )
        else:
            report = await self._probe_this_node(names)
        run_writer.write_json(self.paths.preflight, report.to_json())
        report.require()
        for answer in report.answers:
            self._probed[answer.node] = answer
            self._proxy_env[answer.node] = probes.proxy_env(self.plan, answer)
            if answer.node in remote:
                self._assigned.update(orders.assign_resources(self.plan, answer))
        return report.warnings

    async def _probe_this_node(self, nodes: Sequence[str]) -> PreflightReport:
        """Probe this machine in a daemon thread.

        A dead file system or a slow name server blocks only that thread, which is left behind, so
        the run can still be stopped.
        """
        loop, future = asyncio.get_running_loop(), Future[PreflightReport]()

        def probe() -> None:
            try:
                future.set_result(probes.probe_this_node(self.plan, nodes))
            except BaseException as error:
                future.set_exception(error)
            with contextlib.suppress(RuntimeError):  # the run is over and its loop closed
                loop.call_soon_threadsafe(self.hub.put, lambda: None)

        threading.Thread(target=probe, daemon=True).start()
        await self.until(future.done)
        return future.result()

    async def prepare(
        self, nodes: Iterable[NodePlan], *, is_lost: Callable[[str], bool] = never
    ) -> None:
        """Run ``job.prepare`` once per node; a node that `is_lost` meanwhile is not waited for.

        It runs again where a new agent lacks what it made for the old one. Raises
        PrepareError.
        """
        if not self.launch.options.prepares:
            return
        start_replies = (msg.TaskStarted, *END_REPLIES)
        names = [
            node.name
            for node in nodes
            if node.name in self.plan.prepare
            and (node.capabilities.loses_files or node.name not in self._prepared)
        ]
        for node in names:
            self.hub.forget(node, *start_replies, step=PREPARE)
            command = self.plan.prepare[node]
            self.hub.send(node, orders.start_prepare(command, self.hub.site(node)))
        what = "to run job.prepare"
        await self._answers.require(names, *start_replies, what=what, step=PREPARE, is_lost=is_lost)
        for node in names:  # without a time limit: it is the user's program
            await self._answers.require(
                [node], *END_REPLIES, what=what, step=PREPARE, work_s=None, is_lost=is_lost
            )
            if (reply := self.hub.answer(node, *END_REPLIES, step=PREPARE)) is not None:
                orders.check_prepared(node, reply, self.paths.prepare_log(node))
                self._prepared.add(node)

    def start_tasks(
        self,
        number: int,
        members: Sequence[TaskId],
        *,
        only: Sequence[TaskId],
        restored_step: int | None,
    ) -> None:
        """Order the start of the tasks `only` in attempt `number`, whose gang is `members`."""
        nodes = dict.fromkeys(self.plan.task(task).node for task in members)
        self.plan = orders.at_interface(self.plan, self.hub, nodes)  # of a node that came back, too
        ports = orders.held_ports(self.hub, (node.name for node in self.plan.nodes))
        attempt = Attempt(self.plan, number, tuple(members), ports)
        if not self._is_announced:  # not in attempt 1 if that ended before its start
            self._is_announced = True
            self.announce(self.plan.at(ports=ports))
        for node in dict.fromkeys(self.plan.task(task).node for task in only):
            order = orders.start(
                attempt,
                self.hub.site(node),
                holds_ports=self.hub.holds_ports(node),
                only=only,
                restored_step=restored_step,
                faults=self.launch.faults,
                proxy_env=self._proxy_env.get(node, {}),
                assigned=self._assigned,
            )
            self.hub.send(node, order)

    @property
    def _answers(self) -> Answers:
        return Answers(self.hub, self.until, self.wait_for)
