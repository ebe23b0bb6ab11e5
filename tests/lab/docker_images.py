"""The images of the docker tests: a Debian made with debootstrap, and what is built on it.

No registry is asked. The base is made once and kept as a tarball outside the repository; what the
Dockerfile adds to it is built by the daemon, which keeps its layers.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .dockerd import Docker, LabError

ROOT = Path(__file__).parents[2]
SUITE = "bookworm"
PACKAGES = "python3,python3-venv,ca-certificates"
BASE = f"tfcluster-base:{SUITE}"
STUB = "tfcluster-stub:latest"
"""What the Dockerfile makes before TensorFlow comes: a user, a home, a Python."""
WORKERS = {"tfcluster-tests:newest": (), "tfcluster-tests:tf215": ("--tensorflow", "2.15")}
"""The real worker images, and what `tfcluster build` is told for each."""
JOIN = "tfcluster-tests:join"
BUILT = {**WORKERS, JOIN: ("--join",)}
MARK = "tfcluster-tests-what-pip-was-told"
"""Stands in all that is a secret of the build."""
MAKE_S, IMPORT_S, BUILD_S = 600.0, 120.0, 1500.0
_TRIMMED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man",
            "usr/share/locale", "var/log")  # fmt: skip


def cache() -> Path:
    """Where what is dear to make outlives the tests."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "tfcluster-tests"


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Only one process of tests at a time is between the beginning and the end of this."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def base_tarball() -> Path:
    """A minimal Debian with Python, made now if no earlier test has."""
    path = cache() / f"{SUITE}-{PACKAGES.replace(',', '-')}.tar"
    with alone("base"):
        if not path.exists():
            folder = Path(tempfile.mkdtemp(prefix="base-", dir=cache()))
            try:
                _debootstrap(folder / "root")
                _pack(folder / "root", folder / "base.tar")
                (folder / "base.tar").rename(path)
            finally:
                shutil.rmtree(folder)
    return path


def import_base(docker: Docker) -> str:
    """The base image; its name. One that is there stays: layers are built on it."""
    if docker.run("image", "inspect", BASE).returncode != 0:
        docker("import", "--change", "CMD /bin/sh", str(base_tarball()), BASE, timeout=IMPORT_S)
    return BASE


def build_stub(docker: Docker) -> str:
    """The worker image without TensorFlow, in seconds and without a network; its name."""
    argv = ["build", "--target", "plain", "--build-arg", f"BASE_IMAGE={import_base(docker)}"]
    argv += ["--file", str(ROOT / "docker" / "Dockerfile"), "--tag", STUB, str(ROOT)]
    docker(*argv, timeout=IMPORT_S, env={"DOCKER_BUILDKIT": "1"})
    return STUB


def build_worker(docker: Docker, name: str, *, outside: Mapping[str, str]) -> None:
    """One of BUILT, as a user builds it; quick where the daemon has its layers.

    `outside` is added to the environment: how pip gets out of the daemon's network.
    """
    argv = [sys.executable, "-m", "tfcluster.cli.main", "build", "--network", "host"]
    argv += ["--base", import_base(docker), "--tag", name, *BUILT[name]]
    with tempfile.TemporaryDirectory() as folder:
        argv += _pip_options(Path(folder))
        env = {**docker.env, **outside}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=BUILD_S)
    if done.returncode != 0:
        raise LabError(f"tfcluster build: {done.stderr[-3000:]}")


def _pip_options(folder: Path) -> list[str]:
    """This machine's certificates and settings of pip, marked, less what only this machine has."""
    settings = _pip_settings()
    certificates = settings.pop("cert", None)
    lines = [f"{name} = {value}" for name, value in settings.items() if not _is_here(value)]
    (folder / "pip.conf").write_text("\n".join([f"# {MARK}", "[global]", *lines, ""]))
    options = ["--pip-config", str(folder / "pip.conf")]
    if certificates is not None:
        (folder / "ca.pem").write_text(f"{Path(certificates).read_text()}\n# {MARK}\n")
        options += ["--ca", str(folder / "ca.pem")]
    return options


def _pip_settings() -> dict[str, str]:
    """What this machine's pip is told, by its files and its environment."""
    argv = [sys.executable, "-m", "pip", "config", "list"]
    said = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    found = {}
    for line in sorted(said.splitlines(), reverse=True):  # what begins with ":env:" comes last
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if section in ("global", ":env:"):
            found[option] = str(ast.literal_eval(value))
    return found


def _is_here(value: str) -> bool:
    """Whether it names places of this machine, which a container has not."""
    return re.search(r"(^|\s)(/|file:)", value) is not None


def _debootstrap(root: Path) -> None:
    """From the mirror that this machine's own apt asks."""
    argv = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(root)]
    argv += [mirror] if (mirror := _mirror()) else []
    env = os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=MAKE_S)
    if done.returncode != 0:
        raise LabError(f"debootstrap: {done.stdout[-2000:]}{done.stderr[-500:]}")


def _mirror() -> str | None:
    """Nothing where apt has no such suite: debootstrap has a mirror of its own."""
    wanted = ["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Component: main"]
    with contextlib.suppress(OSError):
        said = subprocess.run(wanted, capture_output=True, text=True, check=False).stdout
        for line in said.splitlines():
            if line.startswith(f"{SUITE} "):
                return line.partition(" ")[2]
    return None


def _pack(root: Path, path: Path) -> None:
    for name in _TRIMMED:
        for entry in (root / name).iterdir() if (root / name).is_dir() else ():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    argv = ["tar", "--create", "--numeric-owner", "--file", str(path), "--directory", str(root)]
    done = subprocess.run([*argv, "."], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"tar: {done.stderr[-500:]}")
