"""The backend `docker`: each task runs in a container of its own, at one docker daemon."""

from __future__ import annotations

from collections.abc import Mapping

from tfcluster.kinds import Capabilities, Kind
from tfcluster.node_loss import LossNature

_HINTS = {
    "out-of-memory": "raise resources.memory, the limit of each container, or use fewer tasks on"
    " this machine, smaller batches or shuffle buffers, no cache() in memory"
}
_LOST = (
    "container-lost",
    "a user or a docker daemon that exited did this: see `docker events` and the daemon's log",
)
_LOSSES = {LossNature.INFRASTRUCTURE: _LOST, LossNature.OWN_FAILURE: _LOST}


class DockerKind(Kind):
    """Containers named after their tasks."""

    capabilities = Capabilities(
        makes_nodes=True,
        has_image=True,
        has_own_network=True,
        has_one_task=True,
        starts_fresh=True,
        loses_files=True,
        clears_up=True,
        on_one_machine=True,
    )
    nodes = "tfcluster.backends.docker.docker_nodes:DockerNodes"
    leftovers = "tfcluster.backends.docker.leftovers"
    exposure = (
        "TensorFlow listens in the containers, without a password: no port is published; only"
        " the run's own containers and the docker host can reach them"
    )
    hints = _HINTS
    losses = _LOSSES
    why_no_addresses = "docker runs all tasks on one machine"

    def place(self, task: str, number: int, host: str, runtime: object) -> tuple[str, str]:
        return task, task

    def is_here(self, environ: Mapping[str, str]) -> bool:
        from tfcluster.backends.docker import client  # imports asyncio

        return client.is_here(environ)


KIND = DockerKind()
