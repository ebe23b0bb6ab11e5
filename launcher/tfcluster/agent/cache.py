"""What a node keeps for later runs, and when it goes: ``bundles/`` and ``files/`` of the cache.

Both are named by what is in them and say by their time when they were last of use. What was of
none for `UNUSED_DAYS` is removed, a little at the end of each run.
"""

from __future__ import annotations

import contextlib
import os
import time

from tfcluster.agent.blob import PARTIAL
from tfcluster.agent.folders import remove

UNUSED_DAYS = 30.0
_HALF_DAYS = 1.0
"""After which a file that was still coming, or a bundle half unpacked, comes no more."""
_USE_S = 3600.0
PRUNE_S = 2.0
"""The most that the end of a run waits for it; the next one goes on."""


class InUse:
    """Says once an hour that a running agent still needs its bundle: it starts tasks with it."""

    def __init__(self, bundle: str) -> None:
        self._bundle, self._next = bundle, 0.0

    def on_time(self, now: float) -> None:
        if now >= self._next:
            self._next = now + _USE_S
            with contextlib.suppress(OSError):
                os.utime(self._bundle)


def prune(cache: str, *, now: float | None = None, patience_s: float = PRUNE_S) -> None:
    """Remove what is old below `cache`, for `patience_s` at most. Others may do so as well."""
    now = time.time() if now is None else now
    until = time.monotonic() + patience_s
    for kept in ("files", "bundles"):
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
