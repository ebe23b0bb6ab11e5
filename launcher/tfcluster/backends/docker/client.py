"""Calls of the system's `docker` client: which daemon it reaches, its answers, and its errors
with a fix.

Through the client, contexts and remote or rootless daemons work as in the user's own shell.
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfcluster.agent import foreign_json
from tfcluster.backends.base import Tell
from tfcluster.errors import SurroundingsError
from tfcluster.spec.sections import DEFAULT_IMAGE

PATIENCE_S = 60.0
"""A daemon that has not answered by then hangs."""
_CURES = (
    (
        "pull access denied|manifest|registry|denied: |unauthorized|no basic auth",
        "is runtime.image right, and may this machine ask its registry? `docker pull` shows more;"
        " `tfcluster build` makes one without",
    ),
    (
        "exec: .*permission denied",
        "may its user run that? Tasks are nobody where the image names no user: --set"
        " runtime.user=root (or another) makes them somebody else",
    ),
    (
        "permission denied",
        "this user may not speak to the docker daemon: join its group (`sudo usermod -aG docker"
        " $USER`, log in again), or use a rootless daemon",
    ),
    (
        "Cannot connect to the Docker daemon|no such host|connection refused|error during connect",
        "is it running? `docker info` shows what this shell reaches; DOCKER_HOST and `docker"
        " context` choose another",
    ),
    (
        "non-overlapping IPv4 address pool",
        "docker has no addresses for one more network: `docker network prune` removes unused ones",
    ),
    (
        "bind source path does not exist",
        "data_dir and checkpoints.dir are folders of the machine the daemon runs on",
    ),
    ("could not select device driver", "install the NVIDIA container toolkit there, or set gpus 0"),
)
"""The first that fits what docker says."""


_NOT_DIALLED = r"dial (unix|tcp|ssh)|no such host|ssh: |could not resolve"


@dataclass(frozen=True, slots=True)
class Answer:
    """What one call of the client came to."""

    code: int
    out: str
    said: str
    """What it wrote to stderr, one line."""

    @property
    def is_good(self) -> bool:
        return self.code == 0


class DockerError(SurroundingsError):
    """Docker refused, or is not there."""

    def __init__(self, what: str, said: str) -> None:
        super().__init__(f"{what}: {said}" if said else what, fix=_fix(said))


def _fix(said: str) -> str:
    cures = (fix for words, fix in _CURES if re.search(words, said, re.IGNORECASE))
    return next(cures, "`docker info` and `docker ps -a` show what it has")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Which daemon the client speaks to, as a variable that says so."""

    variable: str
    value: str

    def __str__(self) -> str:
        return f"{self.variable}={self.value}"

    def environ(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The environment in which `docker` speaks to it."""
        names = ("DOCKER_HOST", "DOCKER_CONTEXT")
        kept = {name: value for name, value in inherited.items() if name not in names}
        return kept | {self.variable: self.value}

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        variable, _, value = text.partition("=")
        return cls(variable, value)


def endpoint_of(environ: Mapping[str, str]) -> Endpoint:
    """What `docker` would speak to in a shell with `environ`."""
    if address := environ.get("DOCKER_HOST"):
        return Endpoint("DOCKER_HOST", address)
    context = environ.get("DOCKER_CONTEXT") or _current_context(environ) or "default"
    return Endpoint("DOCKER_CONTEXT", context)


@functools.cache
def endpoint() -> Endpoint:
    """That of this process, for as long as it lives: `docker context use` in another terminal
    must not lead a run's second half to another daemon."""
    return endpoint_of(os.environ)


async def ask(*argv: str, patience_s: float = PATIENCE_S) -> Answer:
    """`docker ARGV`, to its end. Raises DockerError where there is no client, or no answer."""
    try:
        process = await asyncio.create_subprocess_exec(
            "docker",
            *argv,
            env=endpoint().environ(os.environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # the terminal's Ctrl-C is the coordinator's alone
        )
    except FileNotFoundError:
        raise no_client() from None
    try:
        async with asyncio.timeout(patience_s):
            out, err = await process.communicate()
    except TimeoutError:
        raise DockerError(f"docker {argv[0]} gave no answer for {patience_s:.0f} s", "") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Answer(process.returncode, out.decode(errors="replace").strip(), plain(err))


def was_cut_off(said: str) -> bool:
    """Whether the connection to a daemon broke after it may have heard the order; `said`: the
    client's words. One that could not be dialled has heard nothing."""
    return "error during connect" in said and re.search(_NOT_DIALLED, said, re.IGNORECASE) is None


def no_client() -> SurroundingsError:
    return SurroundingsError(
        "there is no docker client on this machine", fix="install docker, or use another backend"
    )


def plain(said: bytes) -> str:
    """Docker's own words, less where they come from and its advice to read the manual."""
    lines = [line.strip() for line in said.decode(errors="replace").splitlines()]
    kept = [line for line in lines if line and not line.startswith(("See 'docker", "Run 'docker"))]
    text = " ".join(kept)
    return re.sub(r"^(docker: |Error response from daemon: |Error: )+", "", text).strip()


def is_here(environ: Mapping[str, str]) -> bool:
    """Whether the daemon that `docker` reaches from here runs on this machine."""
    there = endpoint_of(environ)
    if there.variable == "DOCKER_HOST":
        return there.value.startswith("unix://")
    if there.value == "default":
        return True
    argv = ["docker", "context", "inspect", there.value, "--format", "{{.Endpoints.docker.Host}}"]
    try:
        found = subprocess.run(argv, env=dict(environ), capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.stdout.startswith("unix://")


def _current_context(environ: Mapping[str, str]) -> str:
    folder = environ.get("DOCKER_CONFIG") or os.path.join(environ.get("HOME", "/"), ".docker")
    try:
        config = foreign_json.read_json_object(Path(folder, "config.json"))
        return str(config.get("currentContext", ""))
    except (OSError, ValueError):
        return ""


_PULL_S = 3600.0
_OURS = DEFAULT_IMAGE.partition(":")[0]


async def find_image(image: str, tell: Tell) -> str:
    """Return the user that the image names, which may be none; pull what the daemon does not have,
    unless only `tfcluster build` makes it. Raises SurroundingsError."""
    inspect = ("image", "inspect", "--format", "{{.Config.User}}", image)
    found = await ask(*inspect)
    if found.is_good:
        return found.out
    if "No such image" not in found.said:
        raise DockerError("docker does not answer", found.said)
    name, _, tag = image.partition(":")
    if name == _OURS:
        version = f" --tensorflow {tag[2:]}" if tag.startswith("tf") else ""
        raise SurroundingsError(
            f"docker has no image {image}", fix=f"`tfcluster build{version}` makes it"
        )
    tell(f"docker pulls {image}, which it does not have")
    answer = await ask("pull", "--quiet", image, patience_s=_PULL_S)
    if not answer.is_good:
        raise DockerError(f"docker has no image {image}, and cannot pull it", answer.said)
    return (await ask(*inspect)).out
