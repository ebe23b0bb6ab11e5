"""`DockerBackend`: one container per task, on a network that the run creates.

The agent is the container's main process and is reached by `docker exec`, so the container ends
with it. No port is published: only the daemon's machine reaches the tasks' ports from outside
that network. Everything created has labels, and leftovers are found by these alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from pathlib import Path

from tfcluster.backends import relayed
from tfcluster.backends.base import Capabilities, Tell, ignore_event
from tfcluster.backends.docker.client import (
    Answer,
    DockerError,
    ask,
    find_image,
    is_here,
    was_cut_off,
)
from tfcluster.backends.docker.containers import HOME, NOBODY, RunningContainer, as_user, run_argv
from tfcluster.backends.docker.leftovers import Sweeper, labels
from tfcluster.errors import NodeLostError, SetupError
from tfcluster.plan.plan import Container, NodePlan
from tfcluster.wire.link import AgentLink

_START_S = 120.0
_CANCELLED_START_S = 5.0
"""Seconds to wait for a cancelled start; the sweeper removes what it creates."""
_NO_NETWORK = "not found"
_NO_PIDS_LIMIT = re.compile(r"WARNING: [^.]*\bpids limit\b[^.]*\.[^.]*discarded\.", re.IGNORECASE)
"""A warning of daemons without the pids controller about a limit the user did not set."""


class DockerBackend:
    """The backend called ``docker``; one object serves one run."""

    capabilities = Capabilities(
        shares_filesystem=False, has_lease=True, holds_ports=True, clears_up=True
    )

    def __init__(self, runtime_dir: Path) -> None:
        self._containers: dict[str, RunningContainer] = {}
        self._starting: set[asyncio.Task[Answer]] = set()
        self._network: asyncio.Task[str] | None = None
        self._images: dict[str, asyncio.Task[str]] = {}
        self._sweeper: Sweeper | None = None
        self._caller: asyncio.Task[tuple[str, ...]] | None = None
        self._warnings: list[str] = []
        self.may_hold_resources = False

    async def connect(
        self,
        node: NodePlan,
        *,
        run_id: str,
        token: str,
        tell: Tell = ignore_event,
        lease_s: float = 60.0,
        is_fenced: bool = False,
    ) -> AgentLink:
        """Start the node's container and connect to its agent.

        Raises SetupError with docker's message. Fencing needs nothing else: container
        names are unique, so the previous container must be gone before a new one is created.
        """
        container = await self._start(node, run_id, tell)
        if self._starting:  # a relay would slow down the containers that start now
            await asyncio.wait([*self._starting])
        python = node.python
        try:
            return await relayed.connect(
                node.name,
                container.exec_argv(python),
                run_id=run_id,
                token=token,
                lease_s=lease_s,
                place=container,
            )
        except NodeLostError as error:
            await container.explain()
            await container.end()
            if container.explanation:
                message = f"{node.name} cannot be reached: {container.explanation}"
                raise NodeLostError(message) from error
            raise

    async def repair(self) -> list[str]:
        """Reconnect containers that were taken off the run's network; return what was done."""
        repaired = await asyncio.gather(*(one.repair() for one in self._containers.values()))
        return list(filter(None, repaired))

    async def close(self, *, keeps_folders: bool = False) -> list[str]:
        """Remove what the run created; return docker's warnings and what stays, in sentences.

        `keeps_folders`: the containers stay as they ended.
        """
        for task in (self._caller, *self._images.values()):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if self._network is not None:  # the daemon still carries out what it was asked for
            await asyncio.wait([self._network, *self._starting], timeout=_CANCELLED_START_S)
        sweeper, self._sweeper = self._sweeper, None
        if sweeper is None:
            return self._warnings
        if keeps_folders:
            await sweeper.dismiss()
            names = ", ".join(one.name for one in self._containers.values())
            kept = f"files were not gathered, so the containers stay: {names};"
            return [*self._warnings, f"{kept} `tfcluster down {sweeper.run_id}` removes them"]
        leftover = await sweeper.sweep(more_may_come=bool(self._starting))
        self.may_hold_resources = leftover is not None
        return [*self._warnings, *filter(None, [leftover])]

    async def _start(self, node: NodePlan, run_id: str, tell: Tell) -> RunningContainer:
        assert node.container is not None
        network, user = await asyncio.gather(
            self._network_of(node, run_id), self._user_of(node.container, tell)
        )
        if (before := self._containers.get(node.name)) is not None:
            await before.end()  # container names are unique
        container = RunningContainer(f"{run_id}-{node.name}", node.name, network)
        self._containers[node.name] = container
        answer = await self._run(run_argv(node, container, run_id, user))
        if not answer.is_ok:
            await container.end()
            if network in answer.stderr and _NO_NETWORK in answer.stderr:
                self._network = None  # it was pruned while unused; create it again next time
            raise DockerError(f"the container of {node.name} does not start", answer.stderr)
        if "WARNING" in (stderr := _NO_PIDS_LIMIT.sub("", answer.stderr)):
            self._warnings.append(f"docker warned about {node.name}: {stderr}")
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

    async def _network_of(self, node: NodePlan, run_id: str) -> str:
        if self._network is None:
            internal = ["--internal"] if node.network == "private" else []
            self._network = asyncio.create_task(self._make_network(run_id, internal))
        return await asyncio.shield(self._network)

    async def _make_network(self, run_id: str, options: list[str]) -> str:
        if self._sweeper is None:
            self._sweeper = await Sweeper.start(run_id)
        held_before, self.may_hold_resources = self.may_hold_resources, True
        try:
            answer = await ask("network", "create", *labels(run_id), *options, run_id)
            if not answer.is_ok:
                self.may_hold_resources = held_before or was_cut_off(answer.stderr)
                raise DockerError("docker cannot make a network for the run", answer.stderr)
        except SetupError as error:
            if not isinstance(error, DockerError):  # there is no client
                self.may_hold_resources = held_before
            if not self._containers:
                sweeper, self._sweeper = self._sweeper, None
                await sweeper.dismiss()
            raise
        return run_id

    async def _user_of(self, container: Container, tell: Tell) -> tuple[str, ...]:
        """Return the options for the tasks' user; never root unless spec or image sets it.

        That is the spec's user, else the caller if tasks use folders of the daemon's machine,
        else the image's user, else nobody.
        """
        image_user = await self._find_image(container.image, tell)
        caller = await self._find_caller(container)
        if container.user is not None:
            return as_user(container.user)
        return caller or (() if image_user else as_user(NOBODY))

    async def _find_caller(self, container: Container) -> tuple[str, ...]:
        if container.data_dir is None and container.shared_dir is None:
            return ()
        if self._caller is None:
            self._caller = asyncio.create_task(_options_for_caller())
        user = await asyncio.shield(self._caller)
        if user and container.shared_dir is not None:
            with contextlib.suppress(OSError):  # docker reports a folder that is missing
                os.makedirs(container.shared_dir, exist_ok=True)
        return user

    async def _find_image(self, image: str, tell: Tell) -> str:
        if image not in self._images:
            self._images[image] = asyncio.create_task(find_image(image, tell))
        return await asyncio.shield(self._images[image])


async def _options_for_caller() -> tuple[str, ...]:
    """Return options that run tasks as the caller, who then owns their files.

    There are none if the daemon is on another machine. A rootless daemon maps its root to the
    caller (docs.docker.com, rootless).
    """
    if not await asyncio.to_thread(is_here, os.environ):
        return ()
    found = await ask("info", "--format", "{{json .SecurityOptions}}")
    if "name=rootless" in found.out:
        return ("--user", "0:0", *HOME)
    groups = [word for group in os.getgroups() for word in ("--group-add", str(group))]
    return ("--user", f"{os.getuid()}:{os.getgid()}", *groups, *HOME)
