"""Tasks in containers: one for each, on a network of the run's own, through the `docker` client.

The agent is the container's own process and is reached by `docker exec`, so it ends the container
with itself. Nothing is published: from outside that network only the daemon's machine reaches
the tasks' ports. All that is made bears labels, and what a run leaves is found by them alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from tfcluster.backends import relayed
from tfcluster.backends.base import Capabilities
from tfcluster.backends.docker_client import DockerError, ask, is_here
from tfcluster.backends.docker_container import RunningContainer, run_argv
from tfcluster.backends.docker_leftovers import Sweeper, labels
from tfcluster.backends.link import AgentLink
from tfcluster.errors import NodeLostError, SurroundingsError
from tfcluster.plan.plan import Container, NodePlan

_START_S = 120.0
_PULL_S = 3600.0


class DockerBackend:
    """The backend called ``docker``; one object serves one run."""

    capabilities = Capabilities(shares_filesystem=False, has_lease=True, holds_ports=True)

    def __init__(self, runtime_dir: Path) -> None:
        self._containers: dict[str, RunningContainer] = {}
        self._network: asyncio.Task[str] | None = None
        self._images: dict[str, asyncio.Task[None]] = {}
        self._sweeper: Sweeper | None = None
        self._user: asyncio.Task[tuple[str, ...]] | None = None

    async def connect(
        self, node: NodePlan, *, run_id: str, token: str, lease_s: float = 60.0
    ) -> AgentLink:
        """Start the node's container, and reach the agent in it; raises SurroundingsError with
        docker's words."""
        assert node.container is not None
        container = await self._start(node, run_id)
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
        except BaseException as error:
            story = await asyncio.shield(container.tell())
            await asyncio.shield(container.end())
            if isinstance(error, NodeLostError) and story:
                raise NodeLostError(f"{node.name} cannot be reached: {story}") from error
            raise

    async def mend(self) -> list[str]:
        """Containers that are off the run's network come back on it."""
        mended = await asyncio.gather(*(one.mend() for one in self._containers.values()))
        return list(filter(None, mended))

    async def close(self) -> str | None:
        """End what the run made; what of it stays, in a sentence."""
        for task in (self._user, *self._images.values()):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if self._network is not None:  # what the daemon has been told it does
            await asyncio.wait([self._network])
        sweeper, self._sweeper = self._sweeper, None
        return None if sweeper is None else await sweeper.sweep()

    async def _start(self, node: NodePlan, run_id: str) -> RunningContainer:
        assert node.container is not None
        network, user, _ = await asyncio.gather(
            self._network_of(node, run_id),
            self._user_of(node),
            self._find_image(node.container.image),
        )
        if (before := self._containers.get(node.name)) is not None:
            await before.end()  # a name is given once
        container = RunningContainer(f"{run_id}-{node.name}", node.name, network)
        self._containers[node.name] = container
        starting = asyncio.create_task(
            ask(*run_argv(node, container, run_id, user), patience_s=_START_S)
        )
        try:
            answer = await asyncio.shield(starting)
        except BaseException:  # called off, while the daemon goes on
            with contextlib.suppress(SurroundingsError):
                await starting
            await container.end()
            raise
        if not answer.is_good:
            await container.end()
            raise DockerError(f"the container of {node.name} does not start", answer.said)
        return container

    async def _network_of(self, node: NodePlan, run_id: str) -> str:
        if self._network is None:
            internal = ["--internal"] if node.network == "private" else []
            self._network = asyncio.create_task(self._make_network(run_id, internal))
        return await asyncio.shield(self._network)

    async def _make_network(self, run_id: str, options: list[str]) -> str:
        self._sweeper = await Sweeper.start(run_id)
        answer = await ask("network", "create", *labels(run_id), *options, run_id)
        if not answer.is_good:
            sweeper, self._sweeper = self._sweeper, None
            await sweeper.dismiss()
            raise DockerError("docker cannot make a network for the run", answer.said)
        return run_id

    async def _user_of(self, node: NodePlan) -> tuple[str, ...]:
        if self._user is None:
            assert node.container is not None
            self._user = asyncio.create_task(_find_user(node.container))
        return await asyncio.shield(self._user)

    async def _find_image(self, image: str) -> None:
        if image not in self._images:
            self._images[image] = asyncio.create_task(_find_image(image))
        await asyncio.shield(self._images[image])


async def _find_user(container: Container) -> tuple[str, ...]:
    """Who the tasks are, where they touch folders of this machine: the caller, to whom files then
    belong. A rootless daemon maps its own root to the caller (docs.docker.com, rootless)."""
    if container.data_dir is None and container.shared_dir is None:
        return ()
    if not is_here(os.environ):
        return ()
    found = await ask("info", "--format", "{{json .SecurityOptions}}")
    is_rootless = "name=rootless" in found.out
    uid, gid = (0, 0) if is_rootless else (os.getuid(), os.getgid())
    return ("--user", f"{uid}:{gid}", "--env", "HOME=/tmp")


async def _find_image(image: str) -> None:
    """Pull what the daemon does not have; raises DockerError."""
    if (await ask("image", "inspect", "--format", "{{.Id}}", image)).is_good:
        return
    answer = await ask("pull", "--quiet", image, patience_s=_PULL_S)
    if not answer.is_good:
        raise DockerError(f"there is no image {image}", answer.said)
