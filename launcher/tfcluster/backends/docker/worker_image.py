"""Builds the worker image: what docker is told, and what its Dockerfile finds beside it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tfcluster.backends.bundle import workers_folder
from tfcluster.backends.docker.client import DockerError, ask
from tfcluster.errors import SurroundingsError, UsageError
from tfcluster.spec.sections import DEFAULT_IMAGE

JOIN_IMAGE: Final = "tfcluster-join:latest"
NEWEST: Final = "newest.txt"
_VERSION: Final = re.compile(r"\d+\.\d+(\.\d+)?((a|b|rc)\d+)?", re.ASCII)
_PIN: Final = re.compile(r"^tensorflow(?:-cpu)?==([\w.]+)", re.MULTILINE)
_PROXIES: Final = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
_FIRST_WITH_PLUGIN: Final = 23
"""From this version on the client builds through its plugin buildx (docs.docker.com, release
notes 23.0)."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for."""

    base: str
    tensorflow: str | None = None
    has_gpu: bool = False
    requirements: Path | None = None
    joins: bool = False
    """Whether tfcluster itself is in it."""
    tags: tuple[str, ...] = ()
    network: str | None = None
    ca: Path | None = None
    pip_config: Path | None = None


@dataclass(frozen=True, slots=True)
class Pin:
    """A version of TensorFlow, and the file of constraints that goes with it ("" for none)."""

    version: str
    constraints: str

    @property
    def wanted(self) -> str:
        """As pip reads it after ``==``: the newest 2.18 for "2.18"."""
        return (
            self.version if self.constraints or self.version.count(".") > 1 else f"{self.version}.*"
        )


def build(wish: Wish, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Build it, with docker's progress on stderr; the names it has now.

    Raises UsageError for a version that is none, SurroundingsError where docker cannot.
    """
    docker, constraints = folders()
    pin = choose(wish.tensorflow, constraints)
    asyncio.run(_require_builder())
    with tempfile.TemporaryDirectory(prefix="tfcluster-build-") as name:
        context = Path(name)
        shutil.copytree(docker, context / "docker", ignore=_IGNORED)
        shutil.copytree(constraints, context / "constraints", dirs_exist_ok=True)
        if wish.requirements is not None:
            shutil.copyfile(wish.requirements, context / "docker" / "requirements.txt")
        if wish.joins:
            _copy_launcher(context)
        command = argv(wish, pin, context, environ)
        # Of podman's and of old clients' progress a part is on stdout, which is for the names.
        code = subprocess.run(command, env={**environ, "DOCKER_BUILDKIT": "1"}, stdout=2).returncode
    if code != 0:
        raise SurroundingsError(f"docker could not build the image (exit code {code})", fix=_CURE)
    return names(wish, pin)


def argv(wish: Wish, pin: Pin, context: Path, environ: Mapping[str, str]) -> list[str]:
    """The command line of docker."""
    return ["docker", "build", *_options(wish, pin, context, environ), str(context)]


def _options(wish: Wish, pin: Pin, context: Path, environ: Mapping[str, str]) -> Iterator[str]:
    yield from ("--file", str(context / "docker" / "Dockerfile"))
    yield from ("--target", "join" if wish.joins else "worker")
    yield from ("--build-arg", f"BASE_IMAGE={wish.base}")
    yield from ("--build-arg", f"FLAVOUR={'gpu' if wish.has_gpu else 'cpu'}")
    yield from ("--build-arg", f"TENSORFLOW={pin.wanted}")
    yield from ("--build-arg", f"CONSTRAINTS={pin.constraints}")
    for name in _PROXIES:
        for spelling in (name, name.upper()):
            if environ.get(spelling):
                yield from ("--build-arg", spelling)  # docker takes the value from its environment
    for secret, path in _secrets(wish, environ):
        yield from ("--secret", f"id={secret},src={path}")
    if wish.network is not None:
        yield from ("--network", wish.network)
    for tag in names(wish, pin):
        yield from ("--tag", tag)


def names(wish: Wish, pin: Pin) -> tuple[str, ...]:
    """What the image is called. The latest is what runs take without another word: one of a
    TensorFlow that was asked for by its version, or for GPUs, does not take its place."""
    if wish.tags:
        return wish.tags
    latest = JOIN_IMAGE if wish.joins else DEFAULT_IMAGE
    own = f"{latest.partition(':')[0]}:tf{pin.version}{'-gpu' if wish.has_gpu else ''}"
    is_usual = wish.tensorflow is None and not wish.has_gpu
    return (latest, own) if is_usual else (own,)


def choose(version: str | None, constraints: Path) -> Pin:
    """The newest pinned release that `version` names, or none of the pinned."""
    pins = {}
    for path in sorted(constraints.glob("*.txt")):
        if found := _PIN.search(path.read_text(encoding="utf-8")):
            pins[path.name] = found[1]
    if version is None:
        return Pin(pins[NEWEST], NEWEST)
    if not _VERSION.fullmatch(version):
        tested = ", ".join(sorted(pins.values()))
        raise UsageError(
            f"--tensorflow: {version!r} is no version", fix=f"write for example {tested}"
        )
    for name, pinned in pins.items():
        if f"{pinned}.".startswith(f"{version}."):
            return Pin(pinned, name)
    return Pin(version, "")


def folders() -> tuple[Path, Path]:
    """Where Dockerfile and constraints lie: in the wheel, or in the source tree.

    Raises SurroundingsError for a broken installation.
    """
    package = Path(__file__).parents[2]
    tree = package.parents[1]
    for docker, constraints in (
        (package / "docker", package / "docker" / "constraints"),
        (tree / "docker", tree / "constraints"),
    ):
        if (docker / "Dockerfile").is_file() and constraints.is_dir():
            return docker, constraints
    message = "the Dockerfile is missing from this installation"
    raise SurroundingsError(message, fix="install tfcluster again")


async def _require_builder() -> None:
    """Raises SurroundingsError where there is no client, no daemon, or nothing to build with."""
    answer = await ask("version", "--format", "{{.Client.Version}}")
    if not answer.is_good:
        raise DockerError("docker cannot build an image", answer.said)
    major = re.match(r"\d+", answer.out)
    if major is None or int(major[0]) < _FIRST_WITH_PLUGIN:
        return
    if not (await ask("buildx", "version")).is_good:
        message = "this docker client cannot build images: its plugin buildx is missing"
        fix = "install docker-buildx-plugin (in Debian and Ubuntu's own packages: docker-buildx)"
        raise SurroundingsError(message, fix=fix)


def _secrets(wish: Wish, environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    given = {"ca": wish.ca, "pip": wish.pip_config}
    usual = {"ca": ("PIP_CERT", "REQUESTS_CA_BUNDLE"), "pip": ("PIP_CONFIG_FILE",)}
    for secret, path in given.items():
        values = [environ[name] for name in usual[secret] if environ.get(name)]
        places = [path] if path is not None else [Path(value) for value in values]
        yield from ((secret, place.absolute()) for place in places[:1] if os.path.isfile(place))


def _copy_launcher(context: Path) -> None:
    package = Path(__file__).parents[2]
    shutil.copytree(package, context / "launcher" / "tfcluster", ignore=_IGNORED)
    workers = context / "workers" / "tfcluster_workers"
    shutil.copytree(workers_folder(), workers, ignore=_IGNORED)


_IGNORED = shutil.ignore_patterns("__pycache__")
_CURE = (
    "docker's last lines say why. Certificates of a proxy: --ca FILE; a package index of your own:"
    " --pip-config FILE; no network: --network host; an image that is here: --base IMAGE"
)
