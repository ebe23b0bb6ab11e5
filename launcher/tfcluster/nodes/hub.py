"""The coordinator's links to all agents, with one inbox and one outbox.

A `NodeBorder` checks what comes in: which messages an agent may send, about which tasks, how many.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from posixpath import dirname
from typing import TYPE_CHECKING, TypeVar

from tfcluster.agent import budgets, protocol
from tfcluster.agent import catalogue as msg
from tfcluster.agent.budgets import Allowance
from tfcluster.agent.exec_frames import parse_name
from tfcluster.agent.message_fields import shorten
from tfcluster.agent.protocol import ProtocolError
from tfcluster.backends.base import Nodes, RunContext, Tell, ignore_event, open_nodes
from tfcluster.kinds import Capabilities
from tfcluster.node_loss import NodeLoss
from tfcluster.nodes.remote_logs import RemoteLogs
from tfcluster.nodes.reports import STEPS, step_of
from tfcluster.nodes.sites import Site, site_of
from tfcluster.plans.plan import NodePlan, Plan
from tfcluster.plans.remote_paths import CACHE
from tfcluster.rundir import chaos
from tfcluster.rundir.paths import RunPaths, runtime_dir
from tfcluster.wire.agent_link import SILENCE_S, AgentLink
from tfcluster.wire.file_transfer import RemoteFiles, RemoteFilesError
from tfcluster.wire.messages import ExecData, LinkBack, LinkCut, Log, Unknown

if TYPE_CHECKING:
    from tfcluster.nodes.exec_sessions import ExecSessions
    from tfcluster.rundir.chaos import Fault
    from tfcluster.spec.sections import Runtime


class NodeBorder:
    """The check of a node's messages against its tasks and orders.

    One serves all agents of a node: a later agent may send logs of what an earlier one started.
    """

    def __init__(
        self, tasks: Collection[str], clock: Callable[[], float], by_hand: Collection[str] = ()
    ) -> None:
        """Prepare the check.

        `tasks` are the node's, without those that are started `by_hand`, about which the agent may
        report ports only. Any node may report the prepare step and the probes.
        """
        self._tasks, self._with_ports, self._clock = {*tasks, *STEPS}, {*tasks, *by_hand}, clock
        per_s = budgets.MESSAGES_PER_S * max(1, len(tasks))
        self._allowance = Allowance(budgets.MESSAGES_AT_ONCE, per_s, clock())
        self._ordered: set[tuple[str, int]] = set()

    def note_order(self, order: msg.Order) -> None:
        """Note the attempts of the tasks that the node is ordered to start."""
        if isinstance(order, msg.Start):
            self._ordered |= {(task.task, order.attempt) for task in order.tasks}

    def check(self, report: msg.Report) -> None:
        """Raise ProtocolError for a message that the node may not send.

        That is: of another node's task, of an attempt that was not ordered, without a port of a
        task, or more messages than its tasks can cause.
        """
        match report:
            case msg.PortsHeld(ports=ports):
                self._check_tasks(report, ports, self._with_ports)
                if missing := self._with_ports - ports.keys():
                    raise ProtocolError(
                        f"a message 'ports_held' without {', '.join(sorted(missing))}"
                    )
            case msg.PortTaken(task=task):
                self._check_tasks(report, [task], self._with_ports)
            case msg.NodeUsage(tasks=used):
                self._check_tasks(report, [usage.task for usage in used], self._tasks - STEPS)
            case msg.TaskMessage(task=task, attempt=attempt):
                self._check_attempt(report, task, attempt)
            case msg.Unkillable(task=str(task), attempt=attempt):
                self._check_attempt(report, task, attempt)
            case ExecData(name=name):
                parse_name(name)
                return  # windows limit its bytes (`exec_sessions`)
            case Log(name=name):
                task, _, number = name.rpartition("/")
                is_number = number.isascii() and number.isdigit() and len(number) < 10
                self._check_attempt(report, task, int(number) if is_number else -1)
                return  # its bytes count
        self._allowance.spend(1, self._clock())
        if self._allowance.wait_s(self._clock()) > 0:
            raise ProtocolError(f"more than {budgets.MESSAGES_AT_ONCE:,} messages at once")

    def _check_tasks(
        self, report: msg.Report, named: Collection[str], allowed: Collection[str]
    ) -> None:
        for task in named:
            if task not in allowed:
                raise ProtocolError(
                    f"a message {report.type!r} about {shorten(task)}, which is not its task"
                )

    def _check_attempt(self, report: msg.Report, task: str, attempt: int | None) -> None:
        self._check_tasks(report, [task], self._tasks)
        if attempt is not None and (task, attempt) not in self._ordered:
            raise ProtocolError(
                f"a message {report.type!r} of {task}, attempt {attempt}, which was never started"
            )


OpenNodes = Callable[[Sequence[NodePlan], RunContext], Nodes]
"""`backends.base.open_nodes`, or another one in tests."""
R = TypeVar("R", bound=msg.Report)
KILL_S = 3.0
"""Time that an agent needs at most, after its lease has ended, to kill what it started."""
_GOODBYE_S = 15.0
"""Time after `shutdown` in which an agent must say goodbye before its link is closed."""


class Hub:
    """The links to all agents of a run. Inputs are calls, queued by `put` and made by `turn`."""

    def __init__(
        self,
        paths: RunPaths,
        lease_s: float = 60.0,
        tell: Tell = ignore_event,
        queued: Tell = ignore_event,
        open_nodes: OpenNodes = open_nodes,
        *,
        plan: Plan | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        """Prepare; for the arguments see `backends.base.RunContext`."""
        self._plan, self._runtime = plan, runtime
        self._paths, self._lease_s = paths, lease_s
        self._tell, self._queued, self._open_nodes = tell, queued, open_nodes
        self._open = contextlib.AsyncExitStack()
        self._nodes: dict[str, Nodes] = {}
        """Backend → its nodes, once `open`."""
        self._logs = RemoteLogs(paths)
        self._execs: ExecSessions | None = None
        self._sites: dict[str, Site] = {}
        self._code: dict[str, str] = {}
        """Node → the folder for its copy of the code."""
        self._links: dict[str, AgentLink] = {}
        self._borders: dict[str, NodeBorder] = {}
        self._capabilities: dict[str, Capabilities] = {}
        """Node that was reached → its capabilities."""
        self._warm: set[str] = set()
        """Nodes whose agent stays for the next run."""
        self._ended: set[str] = set()
        """Lost nodes on which certainly nothing lives."""
        self._last_heard_at: dict[str, float] = {}
        """Node whose link was dropped → when its agent was last heard."""
        self._inbox: asyncio.Queue[Callable[[], None]] = asyncio.Queue()
        self._outbox: list[tuple[str, msg.Order]] = []
        self._replies: dict[tuple[str, str | None, type[msg.Report]], msg.Report] = {}
        self.unconfirmed: tuple[str, ...] = ()
        """Remote nodes that did not say goodbye; set by `close`."""
        self.leftovers: list[str] = []
        """Sentences for the user after the run: warnings, leftovers that could not be removed."""
        self._dropping: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._on_message: Callable[[str, msg.Report], None] = lambda node, message: None
        self._on_closed: Callable[[str, NodeLoss], None] = lambda node, loss: None
        self._background: asyncio.TaskGroup

    def listen(
        self,
        background: asyncio.TaskGroup,
        on_message: Callable[[str, msg.Report], None] | None = None,
        on_closed: Callable[[str, NodeLoss], None] | None = None,
    ) -> None:
        """Set who hears each message but logs, and why a link has ended; before `connect`.

        The links are listened to in `background`.
        """
        self._background = background
        self._on_message = on_message or self._on_message
        self._on_closed = on_closed or self._on_closed

    def put(self, call: Callable[[], None]) -> None:
        """Queue a call, which `turn` makes."""
        self._inbox.put_nowait(call)

    def wake(self) -> None:
        """Have the loop turn, which sends orders and looks at what has changed."""
        self.put(lambda: None)

    def send(self, node: str, order: msg.Order) -> None:
        """Queue an order, which the next `flush` sends."""
        if (border := self._borders.get(node)) is not None:
            border.note_order(order)
        self._outbox.append((node, order))

    @property
    def execs(self) -> ExecSessions:
        """The commands that users run beside tasks."""
        if self._execs is None:
            from tfcluster.nodes.exec_sessions import ExecSessions

            self._execs = ExecSessions(self._order_now, self._send_exec_frame)
        return self._execs

    def _lose_execs(self, node: str) -> None:
        if self._execs is not None:
            self._execs.lose(node)

    def _order_now(self, node: str, order: msg.Order) -> None:
        self.send(node, order)
        self.wake()

    async def _send_exec_frame(self, node: str, name: str, offset: int, data: bytes) -> None:
        if (link := self._links.get(node)) is not None:
            await link.send_data(protocol.EXEC, name, offset, data)

    async def open(self, planned: Sequence[NodePlan]) -> Mapping[str, str]:
        """Make or allocate the nodes, until `close`; raises SetupError.

        Return node → host name, for nodes whose host names the plan could not know.
        """
        run = RunContext(
            self._paths.run_id,
            runtime_dir(),
            self._lease_s,
            tell=self._tell,
            queued=self._queued,
            warn_at_end=self.leftovers.append,
            plan=self._plan,
            runtime=self._runtime,
        )
        for backend in dict.fromkeys(node.backend for node in planned):
            nodes = self._open_nodes([node for node in planned if node.backend == backend], run)
            self._nodes[backend] = await self._open.enter_async_context(nodes)
        hosts = (nodes.hosts for nodes in self._nodes.values())
        return {node: host for of_backend in hosts for node, host in of_backend.items()}

    @property
    def allocation(self) -> str:
        """The owner of the nodes (`Nodes.allocation`); empty without a scheduler."""
        return next(filter(None, (nodes.allocation for nodes in self._nodes.values())), "")

    async def connect(self, node: NodePlan) -> None:
        """Connect to the node's agent and listen to it. Raises SetupError.

        The agent may send messages about the node's tasks and the steps, and hold ports for those
        that are started by hand, too.
        """
        await self.drop(node.name)  # fencing: a local agent's tasks do not outlive this
        lease_s = self._lease_s
        link = await self._nodes[node.backend].connect(
            node,
            token=secrets.token_hex(16),
            is_fenced=self.fenced_until(node.name) <= asyncio.get_running_loop().time(),
        )
        name = node.name
        self._links[name], self._capabilities[name] = link, node.capabilities
        self._ended.discard(name)
        if self._lease_s != lease_s:
            self._send_lease(name)
        if node.warm is not None:
            self._warm.add(name)
        self._sites[name] = site_of(name, self._paths, link.welcome)
        self._code[name] = self._sites[name].folder(node.workdir)
        clock = asyncio.get_running_loop().time
        plan = self._plan
        tasks = [str(task.id) for task in (plan.tasks if plan else ()) if task.node == name]
        by_hand = [str(task.id) for task in (plan.by_hand if plan else ()) if task.node == name]
        border = self._borders.setdefault(name, NodeBorder(tasks, clock, by_hand))
        self._on_message(name, link.welcome)
        self._background.create_task(self._listen(name, link, border))

    def set_lease(self, lease_s: float) -> None:
        """Have agents outlive this process for a longer time, also those that are started later."""
        self._lease_s = lease_s
        for nodes in self._nodes.values():
            nodes.run = replace(nodes.run, lease_s=lease_s)
        for name in self._links:
            self._send_lease(name)
        self.wake()

    def _send_lease(self, node: str) -> None:
        link = self._links[node]
        if link.lease_s is not None:
            link.lease_s = self._lease_s
            self.send(node, msg.SetLease(lease_s=self._lease_s))

    async def _listen(self, node: str, link: AgentLink, border: NodeBorder) -> None:
        """Pass on each accepted message but logs, until the link ends."""
        async for message in link:
            try:
                border.check(message)
            except ProtocolError as error:
                await link.refuse(str(error))
                break
            if isinstance(message, Log):
                self._logs.take(node, message)
            elif isinstance(message, ExecData | msg.ExecReport):
                if self._execs is not None:
                    self._execs.take(node, message)
            elif not isinstance(message, Unknown):
                if isinstance(message, LinkCut | LinkBack):
                    self._lose_execs(node)
                self.put(partial(self._on_message, node, message))
        self._lose_execs(node)
        if self._links.get(node) is link:
            self.put(lambda: self._on_closed(node, link.loss))

    def files(self, node: str) -> RemoteFiles:
        """Return the files of a remote node; raises RemoteFilesError for a lost one."""
        if (link := self._links.get(node)) is None:
            raise RemoteFilesError(f"{node} is lost")
        return link.files

    def is_lost(self, node: str) -> bool:
        """Return whether the node's agent is gone, even if that is not yet reported."""
        return (link := self._links.get(node)) is None or link.files.is_lost

    def site(self, node: str) -> Site:
        """Return the folders of this run on the node, which must have been reached before."""
        return self._sites[node]

    def has_reached(self, node: str) -> bool:
        """Return whether the node was reached at any time: its `site` is known."""
        return node in self._sites

    def uses_run_folder(self, node: str) -> bool:
        """Return whether the node was reached and uses the run folder itself."""
        return self.has_reached(node) and not self._sites[node].is_remote

    def share_code(self, node: NodePlan, folder: str) -> None:
        """Have the node's tasks run in our workdir, which it sees as `folder`."""
        self._sites[node.name] = self._sites[node.name].sharing(node.workdir, folder)

    def holds_ports(self, node: str) -> bool:
        """Return whether the node's agent keeps the ports of running tasks bound."""
        return self._capabilities[node].holds_ports

    def fenced_until(self, node: str) -> float:
        """Return the moment on the loop's clock after which no task of a lost node can live.

        An agent kills its tasks when its lease has passed since it last received something from
        us. That may be later than the last message from it: the link may have been cut in one
        direction only. An agent without a lease ends them with its connection, and `close` waits
        for that.
        """
        capabilities = self._capabilities.get(node)
        if capabilities is None or not capabilities.has_lease or node in self._ended:
            return 0.0
        link = self._links.get(node)
        heard_at = self._last_heard_at[node] if link is None else link.heard_at
        return heard_at + SILENCE_S + self._lease_s + KILL_S

    def inject(self, fault: Fault | None) -> None:
        """Inject a fault that its task has reported, unless the task itself does that."""
        if fault is None:
            return
        if (order := chaos.order(fault)) is not None:
            self.send(fault.node, order)
        if fault.is_of_node:
            assert self._plan is not None
            self._nodes[self._plan.node(fault.node).backend].disturb(fault)

    def fetch_command(self, node: NodePlan, folder: PurePath) -> str:
        """Return the command by which the user copies `folder` from a node that was reached."""
        return self._nodes[node.backend].fetch_command(node.name, folder)

    async def salvage(self, node: NodePlan, folder: PurePath, into: Path) -> None:
        """Copy `folder` of a node whose agent is gone; see `Nodes.salvage`. Raises SetupError."""
        await self._nodes[node.backend].salvage(node.name, folder, into)

    async def explain(self, node: str) -> NodeLoss | None:
        """Return why a node that still answers is taken away; None if nobody says so in time."""
        link = self._links.get(node)
        return await link.explain() if link is not None else None

    async def part_from(self, node: str) -> None:
        """Have an agent that still answers end, and its node with it; then drop it."""
        await self._dismiss(node, keeps_folders=False)
        await self.drop(node)

    async def drop(self, node: str) -> None:
        """Close the link to an agent that does not answer.

        A local agent has ended when this returns, even if it was already being dropped.
        """
        async with self._dropping[node]:
            if (link := self._links.pop(node, None)) is not None:
                self._last_heard_at[node] = link.heard_at
                await link.close()
                if link.has_ended:
                    self._ended.add(node)

    async def repair(self) -> list[str]:
        """Restore what nodes lack before another attempt; return sentences about it."""
        repaired = await asyncio.gather(*(nodes.repair() for nodes in self._nodes.values()))
        return [sentence for sentences in repaired for sentence in sentences]

    def forget(self, node: str, *kinds: type[msg.Report], step: str | None = None) -> None:
        """Forget the node's messages of these `kinds`, because new answers are requested."""
        for kind in kinds:
            self._replies.pop((node, step, kind), None)

    def keep(self, node: str, message: msg.Report) -> None:
        """Keep a message, which `answer` may return."""
        self._replies[node, step_of(message), type(message)] = message

    def answer(self, node: str, *kinds: type[R], step: str | None = None) -> R | None:
        """Return a kept message of one of `kinds` from `node` about this `step`, or None."""
        kept = (self._replies.get((node, step, kind)) for kind in kinds)
        return next((message for message in kept if isinstance(message, kinds)), None)

    async def turn(self, wait_s: float | None) -> None:
        """Wait for an input for at most `wait_s` seconds, then make all queued calls."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                call = await self._inbox.get()
            call()
        while not self._inbox.empty():
            self._inbox.get_nowait()()

    async def flush(self) -> None:
        """Send the queued messages; a broken link reports itself."""
        outbox, self._outbox = self._outbox, []
        for node, order in outbox:
            with contextlib.suppress(ConnectionError, KeyError):
                await self._links[node].send(order)

    async def close(self, *, keeps_folders: bool = False) -> None:
        """Have every agent end its tasks, wait until agents and guards are gone, make all calls.

        Folders of the run on other machines are removed, unless `keeps_folders`.
        """
        await asyncio.gather(*(self._dismiss(node, keeps_folders) for node in self._links))
        confirmed = {node for node, link in self._links.items() if link.heard_goodbye}
        self.unconfirmed = tuple(
            node
            for node, capabilities in sorted(self._capabilities.items())
            if capabilities.outlives_coordinator and node not in confirmed
        )
        for nodes in self._nodes.values():
            nodes.keeps_folders = keeps_folders
        await self._open.aclose()
        while not self._inbox.empty():  # the last exits came meanwhile
            self._inbox.get_nowait()()

    def closing_warnings(self) -> Iterator[str]:
        """Yield sentences about what may be left on the nodes; to be called after `close`."""
        for node in self.unconfirmed:
            yield (
                f"{node} may not know that the run is over: its agent ends what still runs there"
                f" within {self._lease_s:g} s;"
                f" {CACHE}/nodes/{self._paths.run_id} is not removed"
            )
        yield from self.leftovers

    async def _dismiss(self, node: str, keeps_folders: bool) -> None:
        async with self._dropping[node]:
            link = self._links.get(node)
        if link is None:  # it was dropped meanwhile
            return
        site = self._sites[node]
        removes = site.is_remote and not keeps_folders
        order = msg.Shutdown(
            stays=node in self._warm,
            remove=sorted({str(site.paths.root), dirname(self._code[node])}) if removes else (),
        )
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await link.send(order)
        await link.close(keeps_folders=keeps_folders)
