"""The image SMALL: its own Python with the launcher and its client of Kubernetes, no TensorFlow.

It needs nothing of the machine it runs on and writes nowhere, so that a user without a name and a
read-only root file system are enough.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from .docker_images import cache, exclusive
from .kube_images import ROOT, USER, Layer, archive, busybox, users
from .machine import LabError

SMALL = "localhost/tfcluster-small:1"
KEPT = 4
"""Layers of each kind that stay in the tests' cache."""
PYTHON = f"python3.{sys.version_info.minor}"
LIBRARY = f"usr/local/lib/{PYTHON}"
PACKAGES = f"{LIBRARY}/site-packages"
HANG_S = 300.0
_NOT_NEEDED = (
    *("test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "config-*"),
    *("site-packages", "dist-packages", "__pycache__", "_tkinter*", "_test*", "*.a"),
)
_ASYNC_CLIENT = "kubernetes/aio/"
_ASYNC_NEEDS = {"aiohttp", "aiohttp-retry"}
"""The second client, which nothing of ours imports, and the distributions that only it needs."""
_COMMAND = """#!/usr/local/bin/python3
import sys
from tfcluster.cli.main import entry
sys.exit(entry())
"""


def small_image(path: Path) -> None:
    """Write SMALL; its layers are in the tests' cache, by what they are made of."""
    recipe = b"".join(Path(__file__).with_name(f"{n}.py").read_bytes() for n in _RECIPE)
    found = sorted(_distributions())
    parts = [sys.version, *(f"{name} {metadata.version(name)}" for name in found)]
    layers = [_cached("python", recipe + repr(parts).encode(), lambda at: _add_python(at, found))]
    with tempfile.TemporaryDirectory() as folder:
        wheel = _wheel(Path(folder))
        key = recipe + wheel.read_bytes()
        layers.append(_cached("launcher", key, lambda at: _add_launcher(at, wheel)))
    archive(path, SMALL, layers, {"Cmd": ["python3"], "User": f"{USER}", "WorkingDir": "/tmp"})


_RECIPE = ("kube_small", "kube_images")


def _cached(name: str, key: bytes, make: Callable[[Path], None]) -> bytes:
    """Return a layer of the files that `make` writes into a folder, compiled."""
    folder = cache() / "kubernetes-images"
    path = folder / f"{name}-{hashlib.sha256(key).hexdigest()[:16]}.tar"
    with exclusive("kubernetes-images"):
        folder.mkdir(exist_ok=True)
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=folder) as stage:
                make(Path(stage))
                path.with_suffix(".new").write_bytes(_layer(name, Path(stage)))
                path.with_suffix(".new").rename(path)
        path.touch()
        known = sorted(folder.glob(f"{name}-*.tar"), key=lambda one: one.stat().st_mtime)
        for old in known[:-KEPT]:
            old.unlink()
        return path.read_bytes()


def _layer(name: str, stage: Path) -> bytes:
    # Nobody can write byte code later, and the times of the sources are lost in a layer.
    how = ["-q", "-j2", "--invalidation-mode", "unchecked-hash", "-s", str(stage), "-p", "/"]
    _output(sys.executable, "-m", "compileall", *how, str(stage / LIBRARY))
    layer = Layer()
    if name == "python":
        users(layer)
        busybox(layer)
    layer.tree(stage)
    return layer.content()


def _distributions() -> set[str]:
    """Return the names of distributions that the launcher requires with its client."""
    found: set[str] = set()
    wanted = ["tfcluster", "kubernetes"]
    while wanted:
        name = metadata.distribution(wanted.pop()).metadata["Name"]
        if name not in found:
            found.add(name)
            needs: Iterable[Requirement] = map(Requirement, metadata.requires(name) or ())
            needs = (n for n in needs if not n.marker or n.marker.evaluate({"extra": ""}))
            wanted += {n.name for n in needs} - _ASYNC_NEEDS
    return found - {"tfcluster"}


def _add_python(stage: Path, distributions: Iterable[str]) -> None:
    binary = Path(sys.executable).resolve()
    programs = stage / "usr/local/bin"
    programs.mkdir(parents=True)
    shutil.copy(binary, programs / PYTHON)
    for name in ("python3", "python"):
        (programs / name).symlink_to(PYTHON)
    ignore = shutil.ignore_patterns(*_NOT_NEEDED)
    shutil.copytree(sysconfig.get_path("stdlib"), stage / LIBRARY, ignore=ignore)
    for name in distributions:
        _add_distribution(stage / PACKAGES, name)
    (stage / LIBRARY / "dist-packages").symlink_to("site-packages")  # as Debian calls it
    shared = [path for path in (stage / LIBRARY).rglob("*.so*") if path.is_file()]
    for library in _libraries([binary, *shared]):
        inside = "lib64" if library.name.startswith("ld-linux") else "lib"
        (stage / inside).mkdir(exist_ok=True)
        shutil.copy(library, stage / inside / library.name)


def _add_distribution(packages: Path, name: str) -> None:
    for file in metadata.files(name) or ():
        left_out = ".." in file.parts or str(file).startswith(_ASYNC_CLIENT)
        if not left_out and file.suffix != ".pyc":
            (packages / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(file.locate()), packages / file)


def _add_launcher(stage: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(stage / PACKAGES)
    command = stage / "usr/local/bin/tfcluster"
    command.parent.mkdir(parents=True)
    command.write_text(_COMMAND)
    command.chmod(0o755)


def _wheel(folder: Path) -> Path:
    """Build the launcher of this checkout, as it would be published."""
    _output(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    (wheel,) = folder.glob("*.whl")
    return wheel


def _libraries(binaries: Iterable[Path]) -> set[Path]:
    """Return the shared libraries outside the image that programs in it need."""
    found = set()
    for line in _output("ldd", *map(str, binaries)).splitlines():
        words = line.split()
        if "=>" in words and words[2].startswith("/"):
            found.add(Path(words[2]))
        elif len(words) == 2 and "/ld-linux" in words[0]:
            found.add(Path(words[0]))
    return found


def _output(*argv: str) -> str:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=HANG_S)
    if done.returncode != 0:
        raise LabError(f"{' '.join(argv[:4])}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return done.stdout
