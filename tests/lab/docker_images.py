"""The images of the docker tests: a Debian base made with debootstrap, and the images built on it.

No registry is used. The base is made once and kept as a tarball outside the repository; the
daemon builds the Dockerfile's layers on it and keeps them.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from .dockerd import Docker, LabError

ROOT = Path(__file__).parents[2]
SUITE = "bookworm"
PACKAGES = "python3,python3-venv,ca-certificates"
BASE = f"tfcluster-base:{SUITE}"
STUB = "tfcluster-stub:latest"
"""The Dockerfile's stage before TensorFlow: a user, a home, a Python."""
DEBUGGED = "tfcluster-debugged:latest"
"""The same with debugpy."""
WORKER = "tfcluster-tests:newest"
JOIN = "tfcluster-tests:join"
BUILT = {WORKER: (), JOIN: ("--join",)}
"""The real images, and the options of `tfcluster build` for each."""
MARK = "tfcluster-tests-what-pip-was-told"
"""A text in every secret of the build, to be searched for in the image."""
MAKE_S, IMPORT_S, BUILD_S = 600.0, 120.0, 1500.0
_TRIMMED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man",
            "usr/share/locale", "var/log")  # fmt: skip


def cache() -> Path:
    """Return the folder for files that are slow to make and are kept after the tests."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "tfcluster-tests"


@contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Hold a lock: only one test process at a time runs the body."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def base_tarball() -> Path:
    """Return the tarball of a minimal Debian with Python, made now unless it exists."""
    path = cache() / f"{SUITE}-{PACKAGES.replace(',', '-')}.tar"
    with exclusive("base"):
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
    """Import the base image unless it exists (layers are built on it); return its name."""
    if docker.run("image", "inspect", BASE).returncode != 0:
        docker("import", "--change", "CMD /bin/sh", str(base_tarball()), BASE, timeout=IMPORT_S)
    return BASE


def build_stub(docker: Docker) -> str:
    """Build the worker image without TensorFlow, in seconds and offline; return its name."""
    argv = ["build", "--target", "plain", "--build-arg", f"BASE_IMAGE={import_base(docker)}"]
    argv += ["--file", str(ROOT / "docker" / "Dockerfile"), "--tag", STUB, str(ROOT)]
    docker(*argv, timeout=IMPORT_S, env={"DOCKER_BUILDKIT": "1"})
    return STUB


def build_debugged(docker: Docker) -> str:
    """Build the stub image with this environment's debugpy; return its name."""
    packages = "$(python3 -c 'import site; print(site.getsitepackages()[0])')"
    steps = (
        f"FROM {STUB}",
        "COPY . /opt/debugpy/debugpy",
        "USER root",
        f"RUN echo /opt/debugpy > {packages}/debugpy.pth",
        "USER worker",
    )
    found = str(metadata.distribution("debugpy").locate_file("debugpy"))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Dockerfile").write_text("\n".join(steps))
        argv = ["build", "--file", f"{folder}/Dockerfile", "--tag", DEBUGGED, found]
        docker(*argv, timeout=IMPORT_S, env={"DOCKER_BUILDKIT": "1"})
    return DEBUGGED


def build_worker(
    docker: Docker,
    name: str,
    *,
    outside: Mapping[str, str],
    tfcluster: Sequence[str] = (sys.executable, "-m", "tfcluster.cli.main"),
) -> None:
    """Build one of BUILT as a user does; this is quick if the daemon has its layers.

    `outside` is added to the environment: variables with which pip leaves the daemon's network.
    """
    argv = [*tfcluster, "build", "--network", "host"]
    argv += ["--base", import_base(docker), "--tag", name, *BUILT[name]]
    with tempfile.TemporaryDirectory() as folder:
        argv += _pip_options(Path(folder))
        env = {**docker.env, **outside}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=BUILD_S)
    if done.returncode != 0:
        raise LabError(f"tfcluster build: {done.stderr[-3000:]}")


def _pip_options(folder: Path) -> list[str]:
    """Return options with this machine's certificates and pip settings, marked with MARK.

    Settings with local paths are left out.
    """
    settings = _pip_settings()
    certificates = settings.pop("cert", None)
    lines = [f"{name} = {value}" for name, value in settings.items() if not _has_local_path(value)]
    (folder / "pip.conf").write_text("\n".join([f"# {MARK}", "[global]", *lines, ""]))
    options = ["--pip-config", str(folder / "pip.conf")]
    if certificates is not None:
        (folder / "ca.pem").write_text(f"{Path(certificates).read_text()}\n# {MARK}\n")
        options += ["--ca", str(folder / "ca.pem")]
    return options


def _pip_settings() -> dict[str, str]:
    """Return the settings of this machine's pip, from its files and its environment."""
    argv = [sys.executable, "-m", "pip", "config", "list"]
    output = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    found = {}
    for line in sorted(output.splitlines(), reverse=True):  # ":env:" settings come last and win
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if section in ("global", ":env:"):
            found[option] = str(ast.literal_eval(value))
    return found


def _has_local_path(value: str) -> bool:
    """Return whether a setting names local paths, which a container lacks."""
    return re.search(r"(^|\s)(/|file:)", value) is not None


def _debootstrap(root: Path) -> None:
    """Install a Debian into `root`, from the mirror that this machine's apt uses."""
    argv = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(root)]
    argv += [mirror] if (mirror := _mirror()) else []
    env = os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=MAKE_S)
    if done.returncode != 0:
        raise LabError(f"debootstrap: {done.stdout[-2000:]}{done.stderr[-500:]}")


def _mirror() -> str | None:
    """Return apt's mirror, or None if it lacks the suite; debootstrap has a default mirror."""
    argv = ["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Component: main"]
    with contextlib.suppress(OSError):
        output = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
        for line in output.splitlines():
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
