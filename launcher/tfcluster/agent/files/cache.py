"""A node's cache folders: which remain after a run, and when they are removed.

``bundles/`` and ``files/`` are for later runs and named by their content; ``nodes/`` has a folder
for each run, which remains if the coordinator was killed or files could not be gathered. The
modification time of each says when it was last used. What was unused for `UNUSED_DAYS` is removed,
a part at the end of each run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time

from tfcluster.agent.files.blobs import PARTIAL


def new_passing(cache: str) -> str:
    """A name for a folder where files wait that one process is to move into their places: homes
    may be shared, so its number would not do."""
    return os.path.join(cache, "passing", os.urandom(6).hex())


def remove_older(folder: str, seconds: float) -> None:
    """What is in `folder` and has not changed for so long: its owner was killed."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.stat(follow_symlinks=False).st_mtime < time.time() - seconds:
                remove(entry.path)


def remove(folder: str) -> None:
    """A folder and all below it, links themselves and never what they lead to."""
    if os.path.islink(folder):
        os.unlink(folder)
        return
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return
        raise
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            remove(entry.path)
        else:
            os.unlink(entry.path)
    os.rmdir(folder)


UNUSED_DAYS = 30.0
_HALF_DAYS = 1.0
"""After which a file that was still coming, or a bundle half unpacked, comes no more."""
_USE_S = 3600.0
PRUNE_S = 2.0
"""The most that the end of a run waits for it; the next one goes on."""


class CacheUse:
    """Says once an hour that a running agent still needs its bundle, with which it starts tasks,
    and the folder of its run."""

    def __init__(self, *folders: str) -> None:
        self._folders, self._next = folders, 0.0

    def on_time(self, now: float) -> None:
        if now >= self._next:
            self._next = now + _USE_S
            for folder in self._folders:
                with contextlib.suppress(OSError):
                    os.utime(folder)


def prune(cache: str, *, now: float | None = None, patience_s: float = PRUNE_S) -> None:
    """Remove what is old below `cache`, for `patience_s` at most. Others may do so as well."""
    now = time.time() if now is None else now
    until = time.monotonic() + patience_s
    for kept in ("nodes", "files", "bundles"):
        try:
            entries = list(os.scandir(os.path.join(cache, kept)))
        except OSError:
            continue
        for entry in entries:
            if time.monotonic() > until:
                return
            with contextlib.suppress(OSError):
                if _is_old(entry, now):
                    is_folder = entry.is_dir(follow_symlinks=False)
                    (remove if is_folder else os.unlink)(entry.path)


def _is_old(entry: os.DirEntry[str], now: float) -> bool:
    is_half = entry.name.startswith(".") or entry.name.endswith(PARTIAL)
    days = _HALF_DAYS if is_half else UNUSED_DAYS
    return entry.stat(follow_symlinks=False).st_mtime < now - days * 86400
