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
from tfcluster.errors import SetupError
from tfcluster.spec.sections import DEFAULT_IMAGE

PATIENCE_S = 60.0
"""Seconds after which a daemon that has not answered hangs."""
_FIXES = (
    (
        "pull access denied|manifest|registry|denied: |unauthorized|no basic auth",
        "check runtime.image and the access to its registry: `docker pull` shows more;"
        " `tfcluster build` makes an image without a registry",
    ),
    (
        "exec: .*permission denied",
        "the container's user may not run it: --set runtime.user=root chooses another one (the"
        " default is the image's user, else nobody)",
    ),
    (
        "permission denied",
        "this user may not use the docker daemon: join its group (`sudo usermod -aG docker"
        " $USER`, log in again), or use a rootless daemon",
    ),
    (
        "Cannot connect to the Docker daemon|no such host|connection refused|error during connect",
        "is the daemon running? `docker info` shows which one this shell uses; DOCKER_HOST and"
        " `docker context` choose another",
    ),
    (
        "non-overlapping IPv4 address pool",
        "docker has no addresses for another network: `docker network prune` removes unused ones",
    ),
    (
        "bind source path does not exist",
        "data_dir and checkpoints.dir must exist on the machine the daemon runs on",
    ),
    (
        "could not select device driver",
        "install the NVIDIA container toolkit on the daemon's machine, or set gpus to 0",
    ),
)
"""(pattern, fix) for docker's messages; the first match counts."""
_PULL_S = 3600.0
_OWN_IMAGE = DEFAULT_IMAGE.partition(":")[0]

_NOT_DIALLED = r"dial (unix|tcp|ssh)|no such host|ssh: |could not resolve"


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one call of the client."""

    code: int
    out: str
    stderr: str
    """The client's stderr, as one line."""

    @property
    def is_ok(self) -> bool:
        return self.code == 0


class DockerError(SetupError):
    """Docker refused something, or does not answer."""

    def __init__(self, what: str, stderr: str) -> None:
        super().__init__(f"{what}: {stderr}" if stderr else what, fix=_fix(stderr))


def _fix(stderr: str) -> str:
    fixes = (fix for pattern, fix in _FIXES if re.search(pattern, stderr, re.IGNORECASE))
    return next(fixes, "`docker info` and `docker ps -a` show docker's state")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A daemon, as the environment variable that makes the client use it."""

    variable: str
    value: str

    def __str__(self) -> str:
        return f"{self.variable}={self.value}"

    def environ(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the environment in which `docker` uses this daemon."""
        names = ("DOCKER_HOST", "DOCKER_CONTEXT")
        kept = {name: value for name, value in inherited.items() if name not in names}
        return kept | {self.variable: self.value}

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        variable, _, value = text.partition("=")
        return cls(variable, value)


def endpoint_of(environ: Mapping[str, str]) -> Endpoint:
    """Return the daemon that `docker` uses in a shell with `environ`."""
    if address := environ.get("DOCKER_HOST"):
        return Endpoint("DOCKER_HOST", address)
    context = environ.get("DOCKER_CONTEXT") or _current_context(environ) or "default"
    return Endpoint("DOCKER_CONTEXT", context)


@functools.cache
def endpoint() -> Endpoint:
    """Return the daemon of this process, which never changes: `docker context use` in another
    terminal must not lead a running job to another daemon."""
    return endpoint_of(os.environ)


async def ask(*argv: str, patience_s: float = PATIENCE_S) -> Answer:
    """Run `docker ARGV`. Raises DockerError without an answer, SetupError without a client."""
    try:
        process = await asyncio.create_subprocess_exec(
            "docker",
            *argv,
            env=endpoint().environ(os.environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # the terminal's Ctrl-C must reach the coordinator only
        )
    except FileNotFoundError:
        raise SetupError(
            "there is no docker client on this machine",
            fix="install docker, or use another backend",
        ) from None
    try:
        async with asyncio.timeout(patience_s):
            out, err = await process.communicate()
    except TimeoutError:
        raise DockerError(f"docker {argv[0]} did not answer for {patience_s:.0f} s", "") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Answer(process.returncode, out.decode(errors="replace").strip(), plain(err))


def was_cut_off(stderr: str) -> bool:
    """Return whether the connection broke after the daemon may have received the order.

    `stderr`: the client's. A daemon that could not be dialled has received nothing.
    """
    return (
        "error during connect" in stderr and re.search(_NOT_DIALLED, stderr, re.IGNORECASE) is None
    )


def plain(stderr: bytes) -> str:
    """Return docker's message as one line, without its origin and the hint to its manual."""
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines()]
    kept = [line for line in lines if line and not line.startswith(("See 'docker", "Run 'docker"))]
    text = " ".join(kept)
    return re.sub(r"^(docker: |Error response from daemon: |Error: )+", "", text).strip()


def is_here(environ: Mapping[str, str]) -> bool:
    """Return whether the daemon that `docker` uses runs on this machine."""
    daemon = endpoint_of(environ)
    if daemon.variable == "DOCKER_HOST":
        return daemon.value.startswith("unix://")
    if daemon.value == "default":
        return True
    argv = ["docker", "context", "inspect", daemon.value, "--format", "{{.Endpoints.docker.Host}}"]
    try:
        done = subprocess.run(argv, env=dict(environ), capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.startswith("unix://")


def _current_context(environ: Mapping[str, str]) -> str:
    folder = environ.get("DOCKER_CONFIG") or os.path.join(environ.get("HOME", "/"), ".docker")
    try:
        config = foreign_json.read_json_object(Path(folder, "config.json"))
        return str(config.get("currentContext", ""))
    except (OSError, ValueError):
        return ""


async def find_image(image: str, tell: Tell) -> str:
    """Return the image's user ("" for none); pull the image if the daemon lacks it.

    Images that only `tfcluster build` makes are not pulled. Raises SetupError.
    """
    inspect = ("image", "inspect", "--format", "{{.Config.User}}", image)
    inspected = await ask(*inspect)
    if inspected.is_ok:
        return inspected.out
    if "No such image" not in inspected.stderr:
        raise DockerError("docker cannot inspect the image", inspected.stderr)
    name, _, tag = image.partition(":")
    if name == _OWN_IMAGE:
        version = f" --tensorflow {tag[2:]}" if tag.startswith("tf") else ""
        raise SetupError(f"docker has no image {image}", fix=f"`tfcluster build{version}` makes it")
    tell(f"docker pulls {image}")
    answer = await ask("pull", "--quiet", image, patience_s=_PULL_S)
    if not answer.is_ok:
        raise DockerError(f"docker has no image {image} and cannot pull it", answer.stderr)
    return (await ask(*inspect)).out
