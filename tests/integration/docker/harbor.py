"""A command line that starts runs in a docker daemon, and a check of what they leave there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.integration.commandline import CommandLine
from tests.integration.hosts.office import COUNT
from tests.integration.live import Live
from tests.lab.docker_images import STUB
from tests.lab.dockerd import Docker

HANG_S = 100.0
RELEASE = "/tmp/release"
"""The file in each container that lets its task end."""


class Harbor:
    """A command line whose `docker` reaches one daemon."""

    def __init__(self, shell: CommandLine, docker: Docker) -> None:
        self.shell, self.docker = shell, docker
        self.shell.env |= {
            name: docker.env[name]
            for name in ("PATH", "DOCKER_HOST", "DOCKER_CONFIG")
            if name in docker.env
        }

    def spec(
        self, script: str = COUNT, *, count: int = 20, lasts: bool = False, **sections: Any
    ) -> Path:
        """Write a spec of two workers in stub containers.

        With `lasts`, their first attempt goes on until `release`.
        """
        self.shell.script("train.py", script)
        env = {"COUNT": str(count), **({"RELEASE": RELEASE} if lasts else {})}
        plain = {"script": "train.py", "hooks": "off", "env": env}
        job = sections.pop("job", plain)
        runtime = {"backend": "docker", "image": STUB} | sections.pop("runtime", {})
        return self.shell.spec("spec.json", job, runtime=runtime, **sections)

    def up(self, spec: Path, *more: str) -> Live:
        return Live(self.shell, "up", str(spec), *more)

    def release(self, run: Live) -> None:
        """Let the tasks of a spec that `lasts` end."""
        for node in ("worker-0", "worker-1"):
            self.docker("exec", self.container(run, node), "touch", RELEASE)

    def container(self, run: Live, node: str = "worker-1") -> str:
        return f"{run.run_id}-{node}"

    def left(self) -> list[str]:
        """Return the containers and networks with our label, and all volumes."""
        ours = ("--filter", "label=tfcluster.run")
        found = [
            self.docker("ps", "--all", "--format", "{{.Names}}", *ours),
            self.docker("network", "ls", "--format", "{{.Name}}", *ours),
            self.docker("volume", "ls", "--quiet"),
        ]
        return [name for names in found for name in names.split()]

    def clear(self) -> None:
        """Remove the containers and networks with our label."""
        ours = ("--quiet", "--filter", "label=tfcluster.run")
        if containers := self.docker("ps", "--all", *ours).split():
            self.docker("rm", "--force", *containers)
        if networks := self.docker("network", "ls", *ours).split():
            self.docker("network", "rm", *networks)


def ended(run: Live, code: int = 0) -> Live:
    assert run.end(HANG_S) == code, run.said()
    return run
