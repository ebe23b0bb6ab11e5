"""One look at a directory: the only part of finding checkpoints that touches the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tfcluster.checkpoints.completeness import Entry


def scan(directory: Path) -> tuple[Entry, ...]:
    """Every file and folder below `directory`; links are never followed, so never listed.

    What vanishes while being looked at is left out; a directory that is not there is empty.
    """
    return tuple(_walk(directory, ""))


def _walk(directory: Path, inside: str) -> Iterator[Entry]:
    try:
        children = sorted(os.scandir(directory), key=lambda child: child.name)
    except OSError:
        return
    for child in children:
        try:
            if child.is_dir(follow_symlinks=False):
                yield Entry(f"{inside}{child.name}/", 0, child.stat().st_mtime_ns)
                yield from _walk(directory / child.name, f"{inside}{child.name}/")
            elif child.is_file(follow_symlinks=False):
                found = child.stat(follow_symlinks=False)
                yield Entry(f"{inside}{child.name}", found.st_size, found.st_mtime_ns)
        except FileNotFoundError:
            continue
