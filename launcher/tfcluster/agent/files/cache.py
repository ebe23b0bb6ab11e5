"""A node's cache folders: which remain after a run, and when they are removed.

``bundles/`` and ``files/`` are for later runs and named by their content; ``nodes/`` has a folder
for each run, which remains if the coordinator was killed or files could not be gathered. The
modification time of each says when it was last used. What was unused for `UNUSED_DAYS` is removed,
a part at the end of each run.
"""

from __future__ import annotations

import contextlib
import os
import time

from tfcluster.agent.files.blobs import PARTIAL

UNUSED_DAYS = 30.0
_PARTIAL_DAYS = 1.0
"""The age from which on an incomplete file or bundle is no longer being received."""
_USE_S = 3600.0
"""The time between two marks that a folder is in use."""
PRUNE_S = 2.0
"""The time that the end of a run may take for pruning; the next run goes on with it."""


def new_transit_folder(cache: str) -> str:
    """Return a new path for files that one process will move to their places.

    It is random and not the process id, because hosts may share a home.
    """
    return os.path.join(cache, "passing", os.urandom(6).hex())


def remove_older(folder: str, seconds: float) -> None:
    """Remove the entries of `folder` unchanged for `seconds`, whose owners were killed."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.stat(follow_symlinks=False).st_mtime < time.time() - seconds:
                remove(entry.path)


def remove(folder: str) -> None:
    """Remove a folder and all below it; links are removed, never followed."""
    import shutil  # costs memory; needed after a run, and by the file process

    if os.path.islink(folder):
        os.unlink(folder)
        return
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        shutil.rmtree(folder)


class CacheUse:
    """A mark, renewed every hour, that a running agent needs its bundle and its run's folder."""

    def __init__(self, *folders: str) -> None:
        self._folders, self._next = folders, 0.0

    def on_time(self, now: float) -> None:
        if now >= self._next:
            self._next = now + _USE_S
            for folder in self._folders:
                with contextlib.suppress(OSError):
                    os.utime(folder)


def prune(cache: str, *, timeout_s: float = PRUNE_S) -> None:
    """Remove old entries of `cache`, for `timeout_s` at most; other processes may do the same."""
    until = time.monotonic() + timeout_s
    for subfolder in ("nodes", "files", "bundles"):
        try:
            entries = list(os.scandir(os.path.join(cache, subfolder)))
        except OSError:
            continue
        for entry in entries:
            if time.monotonic() > until:
                return
            with contextlib.suppress(OSError):
                if _is_old(entry):
                    is_folder = entry.is_dir(follow_symlinks=False)
                    (remove if is_folder else os.unlink)(entry.path)


def _is_old(entry: os.DirEntry[str]) -> bool:
    is_partial = entry.name.startswith(".") or entry.name.endswith(PARTIAL)
    days = _PARTIAL_DAYS if is_partial else UNUSED_DAYS
    return entry.stat(follow_symlinks=False).st_mtime < time.time() - days * 86400
