"""The sdist and the wheel: built twice with the same bytes, complete, and without surplus files."""

from __future__ import annotations

import email
import fnmatch
import hashlib
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

from .commands import ROOT, Failed, run

DIST = ROOT / "dist"
"""The folder of the archives that are published."""
SDIST_TOPS = {
    *("launcher", "workers", "cluster_specs", "docker", "constraints", "docs", "tools"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "pyproject.toml"),
    *(".gitignore", "PKG-INFO"),  # hatchling adds them
}
_WHEEL_TOPS = re.compile(r"tfcluster|tfcluster_workers|tfcluster-[\w.]+\.(dist-info|data)")


def build(folder: Path = DIST) -> str:
    """Build the sdist and, from it, the wheel; build both from the tree; compare all bytes.

    Without isolation a build needs no network: hatchling is installed, in its pinned release.
    Raises Failed if a second build differs from the first.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as other:
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder)
        run(sys.executable, "-m", "hatchling", "build", "--directory", other)  # both from the tree
        first, second = digests(folder), digests(Path(other))
    if differing := {name for name, _ in first.items() ^ second.items()}:
        raise Failed(f"two builds differ: {', '.join(sorted(differing))}")
    return ", ".join(f"{name} {digest[:12]}" for name, digest in first.items())


def digests(folder: Path) -> dict[str, str]:
    """Return file → SHA-256 of its bytes."""
    files = sorted(path for path in folder.iterdir() if path.suffix in {".whl", ".gz"})
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def wheel(folder: Path = DIST) -> Path:
    """Return the wheel that `build` has made. Raises Failed if there is none."""
    return _only(folder, "*.whl")


def sdist(folder: Path = DIST) -> Path:
    """Return the sdist that `build` has made. Raises Failed if there is none."""
    return _only(folder, "*.tar.gz")


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise Failed(f"{folder.name}/{pattern}: {len(found)} files; the step `build` makes one")
    return found[0]


def metadata(archive: Path) -> Message:
    """Return the metadata of a wheel; the payload is the README."""
    with zipfile.ZipFile(archive) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(opened.read(name))


def readme(archive: Path) -> str:
    """Return the README in the metadata of a wheel."""
    payload = metadata(archive).get_payload(decode=True)
    assert isinstance(payload, bytes)
    return payload.decode()


def check_contents(folder: Path = DIST) -> str:
    """Check that both archives hold what they need and nothing else. Raises Failed."""
    if problems := [*_problems_of_wheel(wheel(folder)), *_problems_of_sdist(sdist(folder))]:
        raise Failed("\n".join(problems))
    sizes = [path.stat().st_size // 1000 for path in (wheel(folder), sdist(folder))]
    return "wheel {} kB, sdist {} kB".format(*sizes)


def _problems_of_wheel(path: Path) -> Iterator[str]:
    with zipfile.ZipFile(path) as opened:
        names = set(opened.namelist())
        for name in names:
            if not _WHEEL_TOPS.fullmatch(name.partition("/")[0]) or "__pycache__" in name:
                yield f"{path.name}: {name} does not belong there"
            if name.endswith(".txt") and b"--hash=" in opened.read(name):
                yield f"{path.name}: {name} is a lock file"
    pages = _placed("docs", "tfcluster/docs", "*.md")
    needed = {
        *pages,
        *_placed("launcher/tfcluster", "tfcluster", "*.py"),
        *_placed("workers/tfcluster_workers", "tfcluster_workers", "*.py"),
        *_placed("cluster_specs", "tfcluster/templates", "*.json"),
        *_placed("docker", "tfcluster/docker", "*"),
        *("tfcluster/py.typed", "tfcluster_workers/py.typed", "tfcluster/spec/spec-v1.schema.json"),
        *("tfcluster/web/static/run.js", "tfcluster/web/static/vendor/uplot/LICENSE"),
        "tfcluster/docker/constraints/newest.txt",
        f"{path.name.partition('-py3')[0]}.data/data/share/man/man1/tfcluster.1",
    }
    manual = "tfcluster-*.data/data/share/man/man1/tfcluster.1"
    if not fnmatch.filter(names, manual):
        yield f"{path.name}: {manual} is missing"
    yield from (f"{path.name}: {name} is missing" for name in sorted(needed - names))
    shown = {name for name in names if name.startswith("tfcluster/docs/")}
    for name in sorted(shown - pages):
        yield f"{path.name}: `tfcluster help` does not show {name}"


def _placed(folder: str, place: str, pattern: str) -> set[str]:
    root = ROOT / folder
    files = (path for path in root.rglob(pattern) if path.is_file())
    return {f"{place}/{path.relative_to(root).as_posix()}" for path in files}


def _problems_of_sdist(path: Path) -> Iterator[str]:
    with tarfile.open(path) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    tops = {name.partition("/")[0] for name in names}
    if tops != SDIST_TOPS:
        yield f"{path.name}: surplus or missing: {', '.join(sorted(tops ^ SDIST_TOPS))}"
    for name in sorted(_placed("docs", "docs", "*.md") - names):
        yield f"{path.name}: {name} is missing"
