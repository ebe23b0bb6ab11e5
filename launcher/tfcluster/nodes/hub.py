"""The coordinator's lines to the agents: one queue of what comes in, one list of what goes out."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from posixpath import dirname
from typing import Any

from tfcluster.agent import budgets
from tfcluster.agent.budgets import Allowance
from tfcluster.agent.protocol import ProtocolError
from tfcluster.backends.base import Backend, Tell, ignore_event
from tfcluster.backends.docker import past_runs
from tfcluster.nodes.remote_folders import LogsOfOthers, Site, site_of
from tfcluster.nodes.reports import STEPS
from tfcluster.plan.plan import NodePlan
from tfcluster.rundir.paths import RunPaths
from tfcluster.wire import messages
from tfcluster.wire.file_transfer import RemoteFiles, RemoteFilesError
from tfcluster.wire.link import SILENCE_S, AgentLink


class NodeBorder:
    """Outlives the node's agents: what one of them was ordered, its logs may name later."""

    def __init__(
        self, tasks: Collection[str], clock: Callable[[], float], by_hand: Collection[str] = ()
    ) -> None:
        """`tasks`: the node's own, but for those that are started `by_hand`."""
        self._tasks, self._by_hand, self._clock = tasks, by_hand, clock
        per_s = budgets.MESSAGES_PER_S * max(1, len(tasks))
        self._allowance = Allowance(budgets.MESSAGES_AT_ONCE, per_s, clock())
        self._ordered: set[tuple[str, int]] = set()

    def note_order(self, order: Mapping[str, Any]) -> None:
        """What the node is told to do."""
        if order["type"] == "start":
            self._ordered |= {(task["task"], order["attempt"]) for task in order["tasks"]}

    def check(self, message: Mapping[str, Any]) -> None:
        """Raises ProtocolError for word of a task that is not the node's, of an attempt that was
        not ordered, and for more words than its tasks can have."""
        messages.check_owner(message, self._tasks, STEPS, by_hand=self._by_hand)
        named = self._attempt_in(message)
        if named is not None and named not in self._ordered:
            task, attempt = named
            raise ProtocolError(
                f"a message {message['type']!r} of {task}, attempt {str(attempt)[:20]},"
                " which was never started"
            )
        if message["type"] != "log":
            self._allowance.spend(1, self._clock())
            if self._allowance.wait_s(self._clock()) > 0:
                most = budgets.MESSAGES_AT_ONCE
                raise ProtocolError(f"more than {most:,} messages at once")

    def _attempt_in(self, message: Mapping[str, Any]) -> tuple[str, int | None] | None:
        if message["type"] == "log":
            task, _, number = message["name"].rpartition("/")
            is_number = number.isascii() and number.isdigit() and len(number) < 10
            return task, int(number) if is_number else None
        if message.get("task") is None or "attempt" not in message:
            return None
        return message["task"], message["attempt"]


Message = Mapping[str, Any]

KILL_S = 3.0
"""An agent whose lease has ended needs at most so long to kill what it started."""
_GOODBYE_S = 15.0
"""An agent that has not said goodbye so long after `shutdown` is closed on."""


class Hub:
    """Inputs are calls: put in the queue from anywhere, made by `turn` in the loop's own time."""

    def __init__(
        self,
        backend_of: Callable[[NodePlan], Backend],
        paths: RunPaths,
        lease_s: float = 60.0,
        tell: Tell = ignore_event,
    ) -> None:
        self._tell, self._clearing = tell, set[str]()
        """`_clearing`: nodes whose backend clears up after them."""
        self._backend_of, self._paths, self._lease_s = backend_of, paths, lease_s
        self._backends: dict[str, Backend] = {}
        self._logs = LogsOfOthers(paths)
        self._sites: dict[str, Site] = {}
        self._code: dict[str, str] = {}
        """Node → where its copy of the code lies, if it needs one."""
        self._links: dict[str, AgentLink] = {}
        self._borders: dict[str, NodeBorder] = {}
        self._holds_ports: dict[str, bool] = {}
        self._has_lease: set[str] = set()
        self._warm: set[str] = set()
        """Nodes whose agent is to stay for the next run."""
        self._ended: set[str] = set()
        """Lost nodes of which it is certain that nothing lives there."""
        self._heard_at: dict[str, float] = {}
        """Of nodes whose link is gone."""
        self._inbox: asyncio.Queue[Callable[[], None]] = asyncio.Queue()
        self._outbox: list[tuple[str, dict[str, Any]]] = []
        self._replies: dict[tuple[str, str], Message] = {}
        self.unconfirmed: tuple[str, ...] = ()
        """Nodes elsewhere that did not say goodbye, after `close`."""
        self.leftovers: tuple[str, ...] = ()
        """What backends could not clear away, in sentences, after `close`."""
        self._dropping: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def put(self, call: Callable[[], None]) -> None:
        self._inbox.put_nowait(call)

    def send(self, node: str, message: dict[str, Any]) -> None:
        """Sent with the next `flush`."""
        if (border := self._borders.get(node)) is not None:
            border.note_order(message)
        self._outbox.append((node, message))

    async def connect(
        self,
        node: NodePlan,
        run_id: str,
        *,
        on_message: Callable[[str, Message], None],
        on_closed: Callable[[str, str], None],
        background: asyncio.TaskGroup,
        tasks: Collection[str],
        by_hand: Collection[str] = (),
    ) -> None:
        """Reach the node's agent and listen to it, who may speak of `tasks` and of the steps, and
        holds ports for the tasks `by_hand`, too; raises SurroundingsError."""
        backend = self._the_backend_of(node)
        await self.drop(node.name)  # fencing: nothing of a local agent's tasks lives after it
        link = await backend.connect(
            node,
            run_id=run_id,
            token=secrets.token_hex(16),
            tell=self._tell,
            lease_s=self._lease_s,
            is_fenced=self.fenced_until(node.name) <= asyncio.get_running_loop().time(),
        )
        self._note(node, backend, link)
        clock = asyncio.get_running_loop().time
        border = self._borders.setdefault(node.name, NodeBorder(tasks, clock, by_hand))
        on_message(node.name, {"type": "welcome", **link.welcome})
        hear = partial(on_message, node.name)
        background.create_task(self._listen(node.name, link, border, hear, on_closed))

    async def _listen(
        self,
        node: str,
        link: AgentLink,
        border: NodeBorder,
        hear: Callable[[Message], None],
        on_closed: Callable[[str, str], None],
    ) -> None:
        """Until the link ends: `hear` gets what passes the border, but for logs."""
        async for message in link:
            try:
                border.check(message)
            except ProtocolError as error:
                await link.refuse(str(error))
                break
            if message["type"] == "log":
                self._logs.take(node, message)
            elif messages.is_known(message):
                self.put(partial(hear, message))
        if self._links.get(node) is link:
            self.put(lambda: on_closed(node, link.why_gone()))

    def _the_backend_of(self, node: NodePlan) -> Backend:
        """One of each kind serves the run."""
        if node.backend not in self._backends:
            self._backends[node.backend] = made = self._backend_of(node)
            if made.capabilities.clears_up:
                past_runs.note(self._paths.run_id)
        return self._backends[node.backend]

    def _note(self, node: NodePlan, backend: Backend, link: AgentLink) -> None:
        """What is known of a node from its backend and its agent's first words."""
        name, nature = node.name, backend.capabilities
        self._links[name] = link
        self._ended.discard(name)
        self._holds_ports[name] = nature.holds_ports
        if node.warm is not None:
            self._warm.add(name)
        if nature.clears_up:
            self._clearing.add(name)
        if nature.has_lease:
            self._has_lease.add(name)
        self._sites[name] = site_of(name, self._paths, link.welcome)
        self._code[name] = self._sites[name].folder(node.workdir)

    def files(self, node: str) -> RemoteFiles:
        """Of a node whose site is remote; raises FarFilesError for one that is lost."""
        if (link := self._links.get(node)) is None:
            raise RemoteFilesError(f"{node} is lost")
        return link.files

    def is_lost(self, node: str) -> bool:
        """Whether its agent has gone, also where that is not told yet."""
        return (link := self._links.get(node)) is None or link.files.is_lost

    def site(self, node: str) -> Site:
        """Where the node, which was reached before, keeps this run's files."""
        return self._sites[node]

    def uses_run_folder(self, node: str) -> bool:
        """Whether the node was reached, and keeps the run's files in the run folder itself."""
        return node in self._sites and not self._sites[node].is_remote

    def share_code(self, node: NodePlan, folder: str) -> None:
        """The node sees our workdir itself, as `folder`: its tasks work in it."""
        self._sites[node.name] = self._sites[node.name].sharing(node.workdir, folder)

    def holds_ports(self, node: str) -> bool:
        """Whether the node's agent keeps the ports of running tasks bound."""
        return self._holds_ports[node]

    def fenced_until(self, node: str) -> float:
        """When nothing of a lost node's tasks can live any more, on the loop's clock.

        An agent with a lease kills them that long after it heard us last; we may have spoken for
        a while into a line on which nothing came back any more. One without a lease ends them
        with its connection, and `close` waits for that.
        """
        if node not in self._has_lease or node in self._ended:
            return 0.0
        link = self._links.get(node)
        heard_at = self._heard_at[node] if link is None else link.heard_at
        return heard_at + SILENCE_S + self._lease_s + KILL_S

    async def drop(self, node: str) -> None:
        """Cut the connection to an agent that does not answer; a local one is ended, and has
        ended when this returns, also where it was being dropped already."""
        async with self._dropping[node]:
            if (link := self._links.pop(node, None)) is not None:
                self._heard_at[node] = link.heard_at
                await link.close()
                if link.has_ended:
                    self._ended.add(node)

    async def repair(self) -> list[str]:
        """Before another attempt: what nodes had been robbed of, and have again, in sentences."""
        repaired = await asyncio.gather(*(one.repair() for one in self._backends.values()))
        return [sentence for sentences in repaired for sentence in sentences]

    def forget(self, node: str, *kinds: str) -> None:
        """A new answer is wanted."""
        for kind in kinds:
            self._replies.pop((node, kind), None)

    def keep(self, node: str, message: Message) -> None:
        """Remember a message as a possible answer to `answer`."""
        prefix = f"{message['task']} " if message.get("task") in STEPS else ""
        self._replies[node, prefix + message["type"]] = message

    def answer(self, node: str, kinds: Iterable[str]) -> Message | None:
        """The message of one of `kinds` that came from `node`, if one has."""
        found = (self._replies.get((node, kind)) for kind in kinds)
        return next((message for message in found if message is not None), None)

    async def turn(self, wait_s: float | None) -> None:
        """Wait for one input at most `wait_s`, then make all the calls that are there."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                call = await self._inbox.get()
            call()
        while not self._inbox.empty():
            self._inbox.get_nowait()()

    async def flush(self) -> None:
        """Send what waits; a link that is gone reports itself."""
        outbox, self._outbox = self._outbox, []
        for node, message in outbox:
            with contextlib.suppress(ConnectionError, KeyError):
                await self._links[node].send(message)

    async def close(self, *, keeps_folders: bool = False) -> None:
        """Have every agent end whatever is left, wait until agents and guards are gone, and hear
        what they had to say. Folders on other machines go with them, unless they are to be kept.
        """
        await asyncio.gather(*(self._dismiss(node, keeps_folders) for node in self._links))
        said = {node for node, link in self._links.items() if link.heard_goodbye}
        self.unconfirmed = tuple(sorted(self._has_lease - said - self._clearing))
        closing = (one.close(keeps_folders=keeps_folders) for one in self._backends.values())
        closed = await asyncio.gather(*closing)
        self.leftovers = tuple(sentence for sentences in closed for sentence in sentences)
        noted = [one for one in self._backends.values() if one.capabilities.clears_up]
        if noted and not any(one.may_hold_resources for one in noted):
            past_runs.forget(self._paths.run_id)
        while not self._inbox.empty():  # the last exits came while nobody looked
            self._inbox.get_nowait()()

    async def _dismiss(self, node: str, keeps_folders: bool) -> None:
        async with self._dropping[node]:
            link = self._links.get(node)
        if link is None:  # it was being dropped
            return
        site = self._sites[node]
        order: dict[str, Any] = {"type": "shutdown", "stays": node in self._warm}
        if site.is_remote and not keeps_folders:
            order["remove"] = sorted({str(site.paths.root), dirname(self._code[node])})
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await link.send(order)
        await link.close(keeps_folders=keeps_folders)
