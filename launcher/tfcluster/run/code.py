"""The code that other machines get a copy of: what git tracks, and what it does not ignore."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tfcluster.backends.far_files import Sent
from tfcluster.errors import SurroundingsError

MOST_BYTES = 200 * 1000 * 1000
_NEVER = frozenset({".git", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache"})
"""Folders that are no code, where there is no git to say so."""


def snapshot(workdir: Path, include: Sequence[str] = ()) -> list[Sent]:
    """The files of `workdir` to send; `include`: globs that git may ignore.

    Raises SurroundingsError above 200 MB, and where the folder cannot be read.
    """
    names = _tracked(workdir)
    found = set(_all(workdir) if names is None else names)
    for pattern in include:
        found.update(_matching(workdir, pattern))
    files = [sent for name in sorted(found) if (sent := _sent(workdir, name)) is not None]
    _check_size(workdir, files)
    return files


def _tracked(workdir: Path) -> list[str] | None:
    """As git lists them below `workdir`; None where there is no git, or no repository."""
    list_them = ["git", "-C", str(workdir), "ls-files", "-z", "--cached", "--others"]
    try:
        answer = subprocess.run(
            [*list_them, "--exclude-standard", "--deduplicate"],
            capture_output=True,
            check=True,
            timeout=60,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return [os.fsdecode(name) for name in answer.stdout.split(b"\0") if name]


def _all(workdir: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(workdir):
        folders[:] = sorted(set(folders) - _NEVER)
        for name in names:
            yield os.path.relpath(os.path.join(folder, name), workdir)


def _matching(workdir: Path, pattern: str) -> Iterator[str]:
    for path in workdir.glob(pattern):
        inside = [path] if not path.is_dir() else [p for p in path.rglob("*") if not p.is_dir()]
        yield from (str(one.relative_to(workdir)) for one in inside)


def _sent(workdir: Path, name: str) -> Sent | None:
    """None for what is neither a file nor a link to one: a socket, a folder of a submodule."""
    path = workdir / name
    try:
        if path.is_symlink() and (target := _link_inside(workdir, path)) is not None:
            return Sent(name, path, link=target)
        found = path.stat()
    except OSError:
        return None  # deleted, but not yet for git
    if not stat.S_ISREG(found.st_mode):
        return None
    return Sent(name, path, stat.S_IMODE(found.st_mode) & 0o755)


def _link_inside(workdir: Path, path: Path) -> str | None:
    """A link that leads to something in the copy stays one; of others the content is sent."""
    target = os.readlink(path)
    led = Path(os.path.normpath(path.parent / target))
    return target if not os.path.isabs(target) and led.is_relative_to(workdir) else None


def _check_size(workdir: Path, files: Iterable[Sent]) -> None:
    sizes = {file.path: file.source.stat().st_size for file in files if file.link is None}
    if (total := sum(sizes.values())) <= MOST_BYTES:
        return
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
    shown = ", ".join(f"{name} ({sizes[name] / 1e6:.0f} MB)" for name in largest)
    raise SurroundingsError(
        f"{workdir} holds {total / 1e6:.0f} MB to send to other hosts, more than 200: {shown}",
        cure="have git ignore what is not code (.gitignore), or set job.workdir",
    )
