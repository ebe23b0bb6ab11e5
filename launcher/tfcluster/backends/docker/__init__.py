"""The backend `docker`: each task runs in a container of its own, at one docker daemon."""

from __future__ import annotations

from collections.abc import Mapping

from tfcluster.kinds import Capabilities, Kind

_HINTS = {
    "out-of-memory": "raise resources.memory, the limit of each container, or use fewer tasks on"
    " this machine, smaller batches or shuffle buffers, no cache() in memory"
}


class DockerKind(Kind):
    """Containers named after their tasks."""

    capabilities = Capabilities(
        makes_nodes=True,
        in_containers=True,
        starts_fresh=True,
        on_one_machine=True,
        clears_up=True,
    )
    nodes = "tfcluster.backends.docker.docker_nodes:DockerNodes"
    leftovers = "tfcluster.backends.docker.leftovers"
    exposure = (
        "TensorFlow listens in the containers, without a password: no port is published; only"
        " the run's own containers and the docker host can reach them"
    )
    hints = _HINTS
    why_no_addresses = "docker runs all tasks on one machine"

    def place(self, task: str, number: int, host: str, runtime: object) -> tuple[str, str]:
        return task, task

    def is_here(self, environ: Mapping[str, str]) -> bool:
        from tfcluster.backends.docker import client  # imports asyncio

        return client.is_here(environ)


KIND = DockerKind()
