"""The build of the worker image (`build`): docker's command line, the build context, and the
choice of a TensorFlow release."""

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
from tfcluster.errors import SetupError, UsageError
from tfcluster.spec.sections import DEFAULT_IMAGE

JOIN_IMAGE: Final = "tfcluster-join:latest"
NEWEST: Final = "newest.txt"
_VERSION: Final = re.compile(r"\d+\.\d+(\.\d+)?((a|b|rc)\d+)?", re.ASCII)
_PIN: Final = re.compile(r"^tensorflow(?:-cpu)?==([\w.]+)", re.MULTILINE)
_PROXIES: Final = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
_FIRST_WITH_PLUGIN: Final = 23
"""The first version of the client that builds through its plugin buildx (docs.docker.com,
release notes 23.0)."""

_FIX = (
    "see docker's last lines. For a proxy's certificates use --ca FILE; for your own package index"
    " --pip-config FILE; without a network --network host; for a local image --base IMAGE"
)

_IGNORED = shutil.ignore_patterns("__pycache__")


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The options of `tfcluster build`."""

    base: str
    tensorflow: str | None = None
    has_gpu: bool = False
    requirements: Path | None = None
    joins: bool = False
    """True if the image contains tfcluster itself."""
    tags: tuple[str, ...] = ()
    network: str | None = None
    ca: Path | None = None
    pip_config: Path | None = None


@dataclass(frozen=True, slots=True)
class Pin:
    """A version of TensorFlow, and its file of pip constraints ("" for none)."""

    version: str
    constraints: str

    @property
    def requirement(self) -> str:
        """The version for pip's ``==``: the newest 2.18 for "2.18"."""
        is_exact = self.constraints or self.version.count(".") > 1
        return self.version if is_exact else f"{self.version}.*"


def build(options: BuildOptions, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Build the image, with docker's progress on stderr; return its names.

    Raises UsageError for an invalid version, SetupError if docker cannot build.
    """
    docker, constraints = folders()
    pin = choose(options.tensorflow, constraints)
    asyncio.run(_require_builder())
    with tempfile.TemporaryDirectory(prefix="tfcluster-build-") as name:
        context = Path(name)
        shutil.copytree(docker, context / "docker", ignore=_IGNORED)
        shutil.copytree(constraints, context / "constraints", dirs_exist_ok=True)
        if options.requirements is not None:
            shutil.copyfile(options.requirements, context / "docker" / "requirements.txt")
        if options.joins:
            _copy_launcher(context)
        command = argv(options, pin, context, environ)
        # podman and old clients print progress to stdout, which is for the names.
        code = subprocess.run(command, env={**environ, "DOCKER_BUILDKIT": "1"}, stdout=2).returncode
    if code != 0:
        raise SetupError(f"docker could not build the image (exit code {code})", fix=_FIX)
    return names(options, pin)


def argv(options: BuildOptions, pin: Pin, context: Path, environ: Mapping[str, str]) -> list[str]:
    """Return docker's command line."""
    return ["docker", "build", *_options(options, pin, context, environ), str(context)]


def _options(
    options: BuildOptions, pin: Pin, context: Path, environ: Mapping[str, str]
) -> Iterator[str]:
    yield from ("--file", str(context / "docker" / "Dockerfile"))
    yield from ("--target", "join" if options.joins else "worker")
    yield from ("--build-arg", f"BASE_IMAGE={options.base}")
    yield from ("--build-arg", f"FLAVOUR={'gpu' if options.has_gpu else 'cpu'}")
    yield from ("--build-arg", f"TENSORFLOW={pin.requirement}")
    yield from ("--build-arg", f"CONSTRAINTS={pin.constraints}")
    for name in _PROXIES:
        for spelling in (name, name.upper()):
            if environ.get(spelling):
                yield from ("--build-arg", spelling)  # docker takes the value from its environment
    for secret, path in _secrets(options, environ):
        yield from ("--secret", f"id={secret},src={path}")
    if options.network is not None:
        yield from ("--network", options.network)
    for tag in names(options, pin):
        yield from ("--tag", tag)


def names(options: BuildOptions, pin: Pin) -> tuple[str, ...]:
    """Return the image's names.

    Runs use the name with `latest` by default, so an image for GPUs, or of a TensorFlow chosen by
    its version, does not get it.
    """
    if options.tags:
        return options.tags
    latest = JOIN_IMAGE if options.joins else DEFAULT_IMAGE
    versioned = f"{latest.partition(':')[0]}:tf{pin.version}{'-gpu' if options.has_gpu else ''}"
    is_default = options.tensorflow is None and not options.has_gpu
    return (latest, versioned) if is_default else (versioned,)


def choose(version: str | None, constraints: Path) -> Pin:
    """Return the pinned release that matches `version`, else `version` without constraints.

    None means the newest pinned release. Raises UsageError for an invalid version.
    """
    pins = {}
    for path in sorted(constraints.glob("*.txt")):
        if pin := _PIN.search(path.read_text(encoding="utf-8")):
            pins[path.name] = pin[1]
    if version is None:
        return Pin(pins[NEWEST], NEWEST)
    if not _VERSION.fullmatch(version):
        tested = ", ".join(sorted(pins.values()))
        raise UsageError(
            f"--tensorflow: {version!r} is not a version", fix=f"use for example {tested}"
        )
    for name, pinned in pins.items():
        if f"{pinned}.".startswith(f"{version}."):
            return Pin(pinned, name)
    return Pin(version, "")


def folders() -> tuple[Path, Path]:
    """Return the folders of the Dockerfile and of the constraints, in the wheel or the source tree.

    Raises SetupError if the installation is broken.
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
    raise SetupError(message, fix="install tfcluster again")


async def _require_builder() -> None:
    """Raise SetupError if the client, the daemon or the client's builder is missing."""
    answer = await ask("version", "--format", "{{.Client.Version}}")
    if not answer.is_ok:
        raise DockerError("docker cannot build an image", answer.stderr)
    major = re.match(r"\d+", answer.out)
    if major is None or int(major[0]) < _FIRST_WITH_PLUGIN:
        return
    if not (await ask("buildx", "version")).is_ok:
        message = "this docker client cannot build images: its plugin buildx is missing"
        fix = "install docker-buildx-plugin (in Debian and Ubuntu's own packages: docker-buildx)"
        raise SetupError(message, fix=fix)


def _secrets(options: BuildOptions, environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    for secret, given, variables in (
        ("ca", options.ca, ("PIP_CERT", "REQUESTS_CA_BUNDLE")),
        ("pip", options.pip_config, ("PIP_CONFIG_FILE",)),
    ):
        path = given or next(filter(None, map(environ.get, variables)), None)
        if path is not None and os.path.isfile(path):
            yield secret, Path(path).absolute()


def _copy_launcher(context: Path) -> None:
    package = Path(__file__).parents[2]
    shutil.copytree(package, context / "launcher" / "tfcluster", ignore=_IGNORED)
    workers = context / "workers" / "tfcluster_workers"
    shutil.copytree(workers_folder(), workers, ignore=_IGNORED)
