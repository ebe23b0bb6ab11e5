"""Tasks in containers: one for each, on a network of the run's own, through the `docker` client.

The agent is the container's own process and is reached by `docker exec`, so it ends the container
with itself. Nothing is published: from outside that network only the daemon's machine reaches
the tasks' ports. All that is made bears labels, and what a run leaves is found by them alone.
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
from tfcluster.errors import NodeLostError, SurroundingsError
from tfcluster.plan.plan import Container, NodePlan
from tfcluster.wire.link import AgentLink

_START_S = 120.0
_CALLED_OFF_S = 5.0
"""So long a start that nobody wants any more is waited for; the sweeper removes what comes."""
_NO_NETWORK = "not found"
_NO_PIDS_LIMIT = re.compile(r"WARNING: [^.]*\bpids limit\b[^.]*\.[^.]*discarded\.", re.IGNORECASE)
"""Said by daemons without that controller, of a limit that nobody has asked for."""


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
        """Start the node's container, and reach the agent in it; raises SurroundingsError with
        docker's words.

        Nothing else is needed for fencing: docker has one container of a name, and the one before
        must be gone for the new one to be made.
        """
        container = await self._start(node, run_id, tell)
        if self._starting:  # a relay would take from the others the processors to start with
            await asyncio.wait([*self._starting])
        python = node.interpreter.path if node.interpreter is not None else "python3"
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
        """Containers that are off the run's network come back on it."""
        repaired = await asyncio.gather(*(one.repair() for one in self._containers.values()))
        return list(filter(None, repaired))

    async def close(self, *, keeps_folders: bool = False) -> list[str]:
        """Remove what the run made. Containers whose folders are to stay are left as they ended;
        what stays, and what docker warned of, in sentences."""
        for task in (self._caller, *self._images.values()):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if self._network is not None:  # what the daemon has been told it does
            await asyncio.wait([self._network, *self._starting], timeout=_CALLED_OFF_S)
        sweeper, self._sweeper = self._sweeper, None
        if sweeper is None:
            return self._warnings
        if keeps_folders:
            await sweeper.dismiss()
            names = ", ".join(one.name for one in self._containers.values())
            said = f"for what lies in them the containers stay: {names}; `tfcluster down` removes"
            return [*self._warnings, f"{said} them"]
        stays = await sweeper.sweep(more_may_come=bool(self._starting))
        self.may_hold_resources = stays is not None
        return [*self._warnings, *filter(None, [stays])]

    async def _start(self, node: NodePlan, run_id: str, tell: Tell) -> RunningContainer:
        assert node.container is not None
        network, user = await asyncio.gather(
            self._network_of(node, run_id), self._user_of(node.container, tell)
        )
        if (before := self._containers.get(node.name)) is not None:
            await before.end()  # a name is given once
        container = RunningContainer(f"{run_id}-{node.name}", node.name, network)
        self._containers[node.name] = container
        answer = await self._run(run_argv(node, container, run_id, user))
        if not answer.is_good:
            await container.end()
            if network in answer.said and _NO_NETWORK in answer.said:
                self._network = None  # pruned while no container was on it; the next one is new
            raise DockerError(f"the container of {node.name} does not start", answer.said)
        if "WARNING" in (said := _NO_PIDS_LIMIT.sub("", answer.said)):
            self._warnings.append(f"docker, of {node.name}: {said}")
        return container

    async def _run(self, argv: list[str]) -> Answer:
        starting = asyncio.create_task(ask(*argv, patience_s=_START_S))
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:  # while the daemon goes on
            await asyncio.wait([starting], timeout=_CALLED_OFF_S)
            raise

    async def _network_of(self, node: NodePlan, run_id: str) -> str:
        if self._network is None:
            internal = ["--internal"] if node.network == "private" else []
            self._network = asyncio.create_task(self._make_network(run_id, internal))
        return await asyncio.shield(self._network)

    async def _make_network(self, run_id: str, options: list[str]) -> str:
        if self._sweeper is None:
            self._sweeper = await Sweeper.start(run_id)
        heard_before, self.may_hold_resources = self.may_hold_resources, True
        try:
            answer = await ask("network", "create", *labels(run_id), *options, run_id)
            if not answer.is_good:
                self.may_hold_resources = heard_before or was_cut_off(answer.said)
                raise DockerError("docker cannot make a network for the run", answer.said)
        except SurroundingsError as error:
            if not isinstance(error, DockerError):  # there is no client
                self.may_hold_resources = heard_before
            if not self._containers:
                sweeper, self._sweeper = self._sweeper, None
                await sweeper.dismiss()
            raise
        return run_id

    async def _user_of(self, container: Container, tell: Tell) -> tuple[str, ...]:
        """Options for who the tasks are: whom the spec names, the caller where they touch folders
        of the daemon's machine, the image's user, else nobody: never root without a word."""
        image_user = await self._find_image(container.image, tell)
        caller = await self._find_caller(container)
        if container.user is not None:
            return as_user(container.user)
        return caller or (() if image_user else as_user(NOBODY))

    async def _find_caller(self, container: Container) -> tuple[str, ...]:
        if container.data_dir is None and container.shared_dir is None:
            return ()
        if self._caller is None:
            self._caller = asyncio.create_task(_find_caller())
        user = await asyncio.shield(self._caller)
        if user and container.shared_dir is not None:
            _make_folder(container.shared_dir)
        return user

    async def _find_image(self, image: str, tell: Tell) -> str:
        if image not in self._images:
            self._images[image] = asyncio.create_task(find_image(image, tell))
        return await asyncio.shield(self._images[image])


async def _find_caller() -> tuple[str, ...]:
    """Options that make tasks the caller, to whom files then belong; none where the daemon is
    elsewhere. A rootless one maps its own root to the caller (docs.docker.com, rootless)."""
    if not await asyncio.to_thread(is_here, os.environ):
        return ()
    found = await ask("info", "--format", "{{json .SecurityOptions}}")
    if "name=rootless" in found.out:
        return ("--user", "0:0", *HOME)
    groups = [word for group in os.getgroups() for word in ("--group-add", str(group))]
    return ("--user", f"{os.getuid()}:{os.getgid()}", *groups, *HOME)


def _make_folder(path: str) -> None:
    """As a job on this machine would; where it cannot be made docker says so."""
    with contextlib.suppress(OSError):
        os.makedirs(path, exist_ok=True)
