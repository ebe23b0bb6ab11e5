"""`DockerNodes`: one container per task, on a network that the run creates.

The agent is the container's main process and is reached by `docker exec`, so the container ends
with it. No port is published: only the daemon's machine reaches the tasks' ports from outside
that network. Everything created has labels, and leftovers are found by these alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Self

from tfcluster.agent import message_fields
from tfcluster.backends import past_runs, relayed
from tfcluster.backends.base import Nodes, RunContext
from tfcluster.backends.docker.client import (
    Answer,
    DockerError,
    ask,
    endpoint,
    find_image,
    is_here,
    was_cut_off,
)
from tfcluster.backends.docker.containers import HOME, NOBODY, RunningContainer, as_user, run_argv
from tfcluster.backends.docker.leftovers import Sweeper, labels
from tfcluster.errors import NodeLostError, SetupError
from tfcluster.node_loss import NodeLoss
from tfcluster.plans.plan import Container, NodePlan
from tfcluster.plans.remote_paths import NodePaths, node_folder
from tfcluster.rundir.paths import RunPaths
from tfcluster.wire.agent_link import AgentLink

_START_S = 120.0
_CANCELLED_START_S = 5.0
"""Seconds to wait for a cancelled start; the sweeper removes what it creates."""
_NO_NETWORK = "not found"
_NO_PIDS_LIMIT = re.compile(r"WARNING: [^.]*\bpids limit\b[^.]*\.[^.]*discarded\.", re.IGNORECASE)
"""A warning of daemons without the pids controller about a limit the user did not set."""


class DockerNodes(Nodes):
    """Containers at one daemon, and the network they share."""

    copies_from_lost = True

    def __init__(self, planned: Sequence[NodePlan], run: RunContext) -> None:
        super().__init__(planned, run)
        self._containers: dict[str, RunningContainer] = {}
        self._starting: set[asyncio.Task[Answer]] = set()
        self._network: asyncio.Task[None] | None = None
        self._users: dict[str, tuple[str, ...]] = {}
        """Node → the options for its tasks' user."""
        self._sweeper: Sweeper | None = None
        self._may_hold_resources = False
        """True if the daemon may have something of the run."""

    async def __aenter__(self) -> Self:
        """Find the images, which may pull them, and make the network."""
        past_runs.note(self.run.run_id, "docker", str(endpoint()))
        self._sweeper = await Sweeper.start(self.run.run_id)
        self._network = asyncio.create_task(self._make_network())
        try:
            await self._find_users()
            await asyncio.shield(self._network)
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._end()

    async def connect(self, node: NodePlan, *, token: str, is_fenced: bool = False) -> AgentLink:
        """Start the node's container and connect to its agent.

        Raises SetupError with docker's message. Fencing needs nothing else: container
        names are unique, so the previous container must be gone before a new one is created.
        """
        container = await self._start(node)
        if self._starting:  # a relay would slow down the containers that start now
            await asyncio.wait([*self._starting])
        argv = container.exec_argv(node.python)
        try:
            config = message_fields.replace(
                self.run.relayed_agent(node.name, token),
                container_socket=relayed.container_socket_name(self.run.run_id, node.name),
            )
            link = await relayed.connect(argv, config, container=container)
        except relayed.Unreached as error:
            await container.explain()
            await container.end()
            loss = container.loss or NodeLoss(str(error))
            message = f"cannot be reached: {loss}"
            raise NodeLostError(message, node=node.name, nature=loss.nature) from error
        self._have_copied(node, container, link.welcome.cache)
        return link

    def _have_copied(self, node: NodePlan, container: RunningContainer, cache: str | None) -> None:
        """Have the chief's checkpoints copied here if this coordinator is killed."""
        plan = self.run.plan
        if plan is None or cache is None or plan.task(plan.chief).node != node.name:
            return
        assert self._sweeper is not None
        run = self.run.run_id
        there = RunPaths(Path(NodePaths(cache, run).folder(node_folder(node.name))))
        here = RunPaths.of(run).task_checkpoints(plan.chief)
        self._sweeper.keep_copy(container.name, there.task_checkpoints(plan.chief), here)

    def fetch_command(self, node: str, folder: PurePath) -> str:
        return f"docker cp {shlex.quote(f'{self.run.run_id}-{node}:{folder}')} ."

    async def salvage(self, node: str, folder: PurePath, into: Path) -> None:
        """Copy from a container that may have ended: its files stay until it is removed."""
        container = self._containers.get(node)
        if container is None:
            raise NodeLostError(f"{node} has no container")
        await container.copy(folder, into)

    @classmethod
    async def fetch_left(
        cls, node: NodePlan, run_id: str, folder: PurePath, into: Path, *, endpoint: str
    ) -> None:
        await _container_of(run_id, node).copy(folder, into)

    async def repair(self) -> list[str]:
        """Reconnect containers that were taken off the run's network; return what was done."""
        repairs = (container.repair() for container in self._containers.values())
        return list(filter(None, await asyncio.gather(*repairs)))

    async def _end(self) -> None:
        """Remove what the run created, unless folders in the containers must stay."""
        if self._network is not None:  # the daemon still carries out what it was asked for
            self._network.add_done_callback(lambda made: made.cancelled() or made.exception())
            await asyncio.wait([self._network, *self._starting], timeout=_CANCELLED_START_S)
        sweeper, self._sweeper = self._sweeper, None
        assert sweeper is not None
        run = self.run.run_id
        if not self._may_hold_resources:
            await sweeper.dismiss()
            past_runs.forget(run)
        elif self.keeps_folders:
            await sweeper.dismiss()
            names = ", ".join(container.name for container in self._containers.values())
            kept = f"files were not gathered, so the containers stay: {names};"
            self.run.warn_at_end(f"{kept} `tfcluster down {run}` removes them")
        elif leftover := await sweeper.sweep(more_may_come=bool(self._starting)):
            self.run.warn_at_end(leftover)
        else:
            past_runs.forget(run)

    async def _start(self, node: NodePlan) -> RunningContainer:
        run = self.run.run_id
        if self._network is None:
            self._network = asyncio.create_task(self._make_network())
        await asyncio.shield(self._network)
        if (before := self._containers.get(node.name)) is not None:
            await before.end()  # container names are unique
        container = _container_of(run, node)
        self._containers[node.name] = container
        answer = await self._run(run_argv(node, container, run, self._users[node.name]))
        if not answer.is_ok:
            await container.end()
            if run in answer.stderr and _NO_NETWORK in answer.stderr:
                self._network = None  # it was pruned while unused; create it again next time
            raise DockerError(f"the container of {node.name} does not start", answer.stderr)
        if "WARNING" in (stderr := _NO_PIDS_LIMIT.sub("", answer.stderr)):
            self.run.warn_at_end(f"docker warned about {node.name}: {stderr}")
        return container

    async def _run(self, argv: list[str]) -> Answer:
        starting = asyncio.create_task(ask(*argv, patience_s=_START_S))
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:  # the daemon still starts the container
            await asyncio.wait([starting], timeout=_CANCELLED_START_S)
            raise

    async def _make_network(self) -> None:
        """Create the run's network, called like the run."""
        run = self.run.run_id
        options = ["--internal"] if self.planned[0].network == "private" else []
        before, self._may_hold_resources = self._may_hold_resources, True
        try:
            answer = await ask("network", "create", *labels(run), *options, run)
        except SetupError as error:
            if not isinstance(error, DockerError):  # there is no client
                self._may_hold_resources = before
            raise
        if not answer.is_ok:
            self._may_hold_resources = before or was_cut_off(answer.stderr)
            raise DockerError("docker cannot make a network for the run", answer.stderr)

    async def _find_users(self) -> None:
        """Note the options for the tasks' users; never root unless spec or image sets it.

        That is the spec's user, else the caller if tasks use folders of the daemon's machine,
        else the image's user, else nobody.
        """
        users: dict[Container, tuple[str, ...]] = {}
        for node in self.planned:
            container = node.container
            assert container is not None
            alike = replace(container, cores=None, gpus=None)
            if alike not in users:
                image_user = await find_image(alike.image, self.run.tell)
                caller = await _find_caller(alike)
                default = caller or (() if image_user else as_user(NOBODY))
                users[alike] = default if alike.user is None else as_user(alike.user)
            self._users[node.name] = users[alike]


def _container_of(run_id: str, node: NodePlan) -> RunningContainer:
    return RunningContainer(f"{run_id}-{node.name}", node.name, run_id)


async def _find_caller(container: Container) -> tuple[str, ...]:
    """Return options that run tasks as the caller, where they use the caller's folders.

    There are none if the daemon is on another machine. A rootless daemon maps its root to the
    caller (docs.docker.com, rootless).
    """
    if container.data_dir is None and container.shared_dir is None:
        return ()
    if not await asyncio.to_thread(is_here, os.environ):
        return ()
    if container.shared_dir is not None:
        with contextlib.suppress(OSError):  # docker reports a folder that is missing
            os.makedirs(container.shared_dir, exist_ok=True)
    info = await ask("info", "--format", "{{json .SecurityOptions}}")
    if "name=rootless" in info.out:
        return ("--user", "0:0", *HOME)
    groups = [word for group in os.getgroups() for word in ("--group-add", str(group))]
    return ("--user", f"{os.getuid()}:{os.getgid()}", *groups, *HOME)
