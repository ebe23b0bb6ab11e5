"""A coordinator outside of the cluster: the objects that its pods share, and the way to them.

In the cluster the coordinator's Job owns these objects. Here the Service does, which names the
coordinator, so that `ps` and `down` find what a killed one has left (`backends.past_runs`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from tfcluster.agent.containers.pod_seat import PORT
from tfcluster.backends import past_runs
from tfcluster.backends.kubernetes import run_objects
from tfcluster.backends.kubernetes.cluster.kube_client import Cluster, Object, soon
from tfcluster.backends.kubernetes.cluster.kube_forward import Forwarder
from tfcluster.backends.kubernetes.run_objects import COORDINATOR, PodRun

T = TypeVar("T")


class Outside:
    """The objects of one run that a coordinator outside of `cluster` needs there."""

    def __init__(self, cluster: Cluster, run: PodRun, *, backend: str, folder: Path) -> None:
        """`folder`: for the sockets and tokens of this machine's runs."""
        self._cluster, self._run, self._backend = cluster, run, backend
        self.token, pods = _files(run.name, folder)
        """The file with the token of the pods' seats."""
        self.forwarder = Forwarder(cluster, pods, PORT)
        self.owner: Object
        """The object that owns all others of the run."""

    async def open(self) -> None:
        """Make the objects, and listen for transports. Raises SetupError, OSError."""
        token = secrets.token_hex(32)
        self.token.touch(mode=0o600)
        self.token.write_text(token)
        await self.forwarder.open()
        past_runs.note(self._run.run_id, self._backend, self._cluster.name)
        service = run_objects.service(self._run)
        service["metadata"]["annotations"] |= {COORDINATOR: past_runs.this_process()}
        made = await to_the_end(soon(self._cluster.create, "services", service))
        self.owner = service | made
        owned = {
            "secrets": run_objects.secret(self._run, token, {}),
            "networking/networkpolicies": run_objects.network_policy(self._run),
        }
        if (group := run_objects.pod_group(self._run)) is not None:
            owned[run_objects.pod_groups(group, self._cluster.namespace)] = group
        for path, body in owned.items():
            body = run_objects.with_owner(body, self.owner)
            await to_the_end(soon(self._cluster.create, path, body))

    async def close(self, *, keeps_objects: bool) -> None:
        """Listen no more, and delete the objects. Raises SetupError."""
        self.token.unlink(missing_ok=True)
        await self.forwarder.close()
        if keeps_objects:
            return
        name, namespace = self._run.name, self._cluster.namespace
        paths = [f"{kind}/{name}" for kind in ("networking/networkpolicies", "secrets")]
        if (group := run_objects.pod_group(self._run)) is not None:
            paths.append(f"{run_objects.pod_groups(group, namespace)}/{name}")
        for path in (*paths, f"services/{name}"):
            await soon(self._cluster.delete, path)


def _files(name: str, folder: Path) -> tuple[Path, Path]:
    """Return the file with the token, and the socket for transports."""
    return folder / f"{name}.token", folder / f"{name}.pods"


def remove_files(name: str, folder: Path) -> None:
    """Remove what a coordinator that was killed has left on this machine."""
    for path in _files(name, folder):
        path.unlink(missing_ok=True)


async def to_the_end(request: Awaitable[T]) -> T:
    """Return what a request returns; also a cancelled caller waits for its answer.

    The thread of a request cannot be stopped: the object would be made after the end.
    """
    task = asyncio.ensure_future(request)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
