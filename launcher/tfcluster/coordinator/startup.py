"""The way of nodes from nothing to ready for tasks: one for all starts; and the start orders."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from tfcluster.agent import catalogue as msg
from tfcluster.agent.error_text import describe_error
from tfcluster.coordinator.launch import Launch
from tfcluster.coordinator.takeover import leave_if_replaced
from tfcluster.errors import NodeLostError, SetupError
from tfcluster.node_loss import NodeLoss
from tfcluster.nodes import code_sync, orders, probed_resources, shared_workdirs
from tfcluster.nodes.hub import Hub
from tfcluster.nodes.orders import PORT_REPLIES, Answers, Until
from tfcluster.nodes.probe_answers import ProbeAnswer
from tfcluster.nodes.probed_resources import AssignedResources
from tfcluster.nodes.reports import END_REPLIES, PREPARE
from tfcluster.plans import trackers
from tfcluster.plans.plan import NodePlan, Plan, TaskId
from tfcluster.plans.preloading import preload_on
from tfcluster.plans.tf_config import Attempt
from tfcluster.preflight import probes
from tfcluster.preflight.preflight_report import Finding, PreflightReport
from tfcluster.rundir import run_writer
from tfcluster.rundir.events import NodeLost, Warned
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.wire.file_trees import FileToSend

_PRELOAD_REPLIES = (msg.PreloadReady, msg.PreloadFailed)


@dataclass(slots=True)
class Startup:
    """The steps that make nodes ready for tasks: `bring_up` does them for every start.

    A step sends orders to the agents and waits for the answers; one that fails on a node raises
    SetupError.
    """

    launch: Launch
    paths: RunPaths
    hub: Hub
    run_writer: RunWriter
    until: Until
    announce: Callable[[Plan], None]
    """Called just before the first start with the plan, now with every host and port."""
    plan: Plan = field(init=False)
    """The plan, with the host names of all nodes once they are allocated."""
    announced: Plan = field(init=False)
    """The plan that was announced, with every port; before that the one of the launch."""
    broken: dict[str, str] = field(default_factory=dict)
    """Node whose newest agent cannot be reached, or is lost → why."""
    reached: set[str] = field(default_factory=set)
    """The nodes whose agent was reached when they were brought up last."""
    _proxy_env: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Node → variables that keep gRPC between the tasks off its proxies."""
    _assigned: dict[TaskId, AssignedResources] = field(default_factory=dict)
    """Resources of tasks that share a remote node, which only the probe knows."""
    _probed: dict[str, ProbeAnswer] = field(default_factory=dict)
    _prepared: set[str] = field(default_factory=set)
    """The nodes on which ``job.prepare`` has run."""

    def __post_init__(self) -> None:
        self.plan = self.announced = self.launch.plan

    async def bring_up(
        self,
        nodes: Sequence[NodePlan],
        *,
        unreached: Callable[[Mapping[str, SetupError]], None] | None = None,
        is_awaited: bool = True,
    ) -> None:
        """Connect to `nodes` and do there all that tasks need. Raises SetupError.

        `unreached`: given for the first start, and called with the nodes that cannot be reached:
        it raises their errors, or the others go on without them. `is_awaited`: the next start waits
        for the nodes, which `status` shows.
        """
        is_first = unreached is not None
        errors = await self._connect(nodes)
        if errors and unreached is not None:
            unreached(errors)
        elif errors:
            NodeLostError.raise_all([*errors.values()])
        nodes = [node for node in nodes if node.name not in errors]
        show = self.run_writer.wait_for if is_awaited else lambda what: None
        answers = Answers(self.hub, self.until, show)
        try:
            if not all(node.is_here for node in nodes):
                await shared_workdirs.find_shared_workdirs(self.plan, self.hub, nodes)
            self._preload(nodes)
            await self.hold_ports(nodes, answers)
            for finding in await self.preflight(nodes, answers):
                self._warn(f"{finding.node}: {finding.what}; {finding.fix}")
            for warning in await self._send_code(nodes, again=not is_first):
                if is_first:
                    self._warn(warning)
            await self._prepare(nodes, answers)
            await self._await_preload(nodes, answers)
            if lost := [node.name for node in nodes if node.name in self.broken]:
                reason = self.broken[lost[0]]
                raise NodeLostError(f"the new agent of {lost[0]} was lost at once: {reason}")
        except SetupError as error:
            loss = loss_by(error)
            for node in () if is_first else nodes:
                event = NodeLost(node=node.name, reason=loss.reason, nature=loss.nature)
                self.run_writer.record(event)
            raise

    def _warn(self, sentence: str) -> None:
        self.run_writer.record(Warned(message=sentence))

    async def _connect(self, nodes: Sequence[NodePlan]) -> Mapping[str, SetupError]:
        """Connect to `nodes` at once; return node → error, for those that cannot be reached."""

        async def connect(node: NodePlan) -> SetupError | None:
            self.reached.discard(node.name)
            self.broken.pop(node.name, None)
            try:
                await self.connect(node)
            except SetupError as error:
                self.broken[node.name] = error.message
                return error
            self.reached.add(node.name)
            return None

        results = await asyncio.gather(*map(connect, nodes))
        errors = zip((node.name for node in nodes), results, strict=True)
        return {node: error for node, error in errors if error is not None}

    async def connect(self, node: NodePlan) -> None:
        """Connect to a node's agent and listen to it. Raises SetupError."""
        leave_if_replaced(self.paths)
        await self.hub.connect(node)

    async def hold_ports(self, nodes: Iterable[NodePlan], answers: Answers) -> None:
        """Have the nodes' agents hold the ports of their tasks for as long as the agents live.

        They answer with the nodes' addresses on the interface that the spec names, too. A second
        call chooses new ports where the spec leaves the choice, except for the tf.data service,
        which runs on. A node that is lost meanwhile is not waited for. Raises PortInUseError for a
        taken port, SetupError without the interface.
        """
        if self.plan.kind == "plain":
            return
        names = [node.name for node in nodes]
        for name in names:
            self.hub.forget(name, *PORT_REPLIES)
            self.hub.send(name, orders.hold_ports(self.plan, name))
        await answers.require(
            names, *PORT_REPLIES, what="to hold its ports", is_lost=self.broken.__contains__
        )
        for name in names:
            if (taken := self.hub.answer(name, msg.PortTaken)) is not None:
                raise orders.port_error(taken)
        held = orders.held_ports(self.hub, names)
        kept = {task: port for task, port in held.items() if task.serves_data}
        self.plan = orders.at_interface(self.plan, self.hub, names).at(ports=kept)

    def _preload(self, nodes: Iterable[NodePlan]) -> None:
        """Have one process per node import what its tasks import, while other steps go on."""
        for node in nodes:
            if (preload := preload_on(self.plan, node.name)) is not None:
                self.hub.forget(node.name, *_PRELOAD_REPLIES)
                order = orders.preload(preload, node, self.hub.site(node.name))
                self.hub.send(node.name, order)

    async def _await_preload(self, nodes: Iterable[NodePlan], answers: Answers) -> None:
        """Wait until `_preload` is done; if it failed, or a node is lost, tasks start cold."""
        names = [node.name for node in nodes if preload_on(self.plan, node.name) is not None]
        if names:
            answers.wait_for(f"{self.plan.preload[0]} to be imported")
            await answers.require(
                names,
                *_PRELOAD_REPLIES,
                what="to preload the tasks' imports",
                work_s=msg.Preload.within_s,
                is_lost=self.broken.__contains__,
            )
            answers.wait_for(None)

    async def _send_code(self, nodes: Iterable[NodePlan], *, again: bool) -> Sequence[str]:
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
            *(self._copy_code(n.name, snapshot.files, unless_there=again) for n in remote)
        )
        return tuple(snapshot.warnings())

    async def _copy_code(
        self, node: str, files: Sequence[FileToSend], *, unless_there: bool
    ) -> None:
        site = self.hub.site(node)
        into = site.folder(self.plan.node(node).workdir)
        try:
            await self.hub.files(node).send_tree(into, files, keep=True, unless_there=unless_there)
        except OSError as error:
            raise SetupError(
                f"cannot copy the code to {node}: {describe_error(error)}",
                fix=f"set runtime.hosts.{node}.workdir to another folder",
            ) from error

    async def preflight(self, nodes: Iterable[NodePlan], answers: Answers) -> Sequence[Finding]:
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
        if not self.launch.options.runs_preflight:
            several = probed_resources.shared_nodes(self.plan)
            if not (shared := [name for name in remote if name in several]):
                return ()
            probe_answers, warnings = await probes.probe_shared_nodes(
                self.plan, self.paths, answers, shared
            )
            for answer in probe_answers:
                self._probed[answer.node] = answer
                self._take_answer(answer)
            return warnings
        if remote:
            ports, before = orders.held_ports(self.hub, names), [*self._probed.values()]
            report = await probes.probe_nodes(
                self.plan, self.paths, answers, names, ports, before=before
            )
        else:
            report = await self._probe_this_node(names)
        with contextlib.suppress(OSError):  # a full disk
            run_writer.write_json(self.paths.preflight, report.to_json())
        report.require()
        for answer in report.seen:
            self._probed[answer.node] = answer
            self._proxy_env[answer.node] = probes.proxy_env(self.plan, answer)
            if answer.node in remote:
                self._take_answer(answer)
        return report.warnings

    def _take_answer(self, answer: ProbeAnswer) -> None:
        """Take from a remote node's answer what planning could not know."""
        self._assigned.update(probed_resources.assign_resources(self.plan, answer))
        set_there = probed_resources.set_on_node(self.plan, answer)
        self.plan = trackers.at_node(self.plan, answer.node, answer.packages, set_there)

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
                loop.call_soon_threadsafe(self.hub.wake)

        threading.Thread(target=probe, daemon=True).start()
        await self.until(future.done)
        return future.result()

    async def _prepare(self, nodes: Iterable[NodePlan], answers: Answers) -> None:
        """Run ``job.prepare`` once per node; a node that is lost meanwhile is not waited for.

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
        is_lost = self.broken.__contains__
        await answers.require(names, *start_replies, what=what, step=PREPARE, is_lost=is_lost)
        for node in names:  # without a time limit: it is the user's program
            await answers.require(
                [node], *END_REPLIES, what=what, step=PREPARE, work_s=None, is_lost=is_lost
            )
            if (reply := self.hub.answer(node, *END_REPLIES, step=PREPARE)) is not None:
                orders.check_prepared(node, reply, self.paths.step_log(PREPARE, node))
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
        ports = orders.held_ports(self.hub, (node.name for node in self.plan.nodes))
        attempt = Attempt(self.plan, number, tuple(members), ports)
        if self.announced is self.launch.plan:  # not in attempt 1 if that ended before its start
            self.announced = self.plan.at(ports=ports)
            self.announce(self.announced)
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
                tracker_group=self.run_writer.state.tracker_group or self.paths.run_id,
            )
            self.hub.send(node, order)


def loss_by(error: SetupError) -> NodeLoss:
    """Return the loss of a node that could not be brought up."""
    if isinstance(error, NodeLostError):
        return NodeLoss(error.message, error.nature)
    return NodeLoss(error.message)
