"""Wakes a view when its run's folder changes, so that it sleeps while nothing happens.

On Linux the kernel tells of changes (inotify). Elsewhere, and where the user has as many of its
listeners as there may be, a view looks by itself, less often the longer nothing comes.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
import threading
from pathlib import Path

from tfcluster.agent.processes import IS_LINUX

GATHER_S = 0.05
"""After a change: more follows as a rule, and one look finds it all."""
UNTOLD_S = 1.0
"""Between two looks that nothing has caused: nobody tells of another host's change in a shared
home, or of a process that was killed."""
FASTEST_POLL_S, SLOWEST_POLL_S = 0.02, 0.2
"""Between two looks where nobody tells anything: doubling while it stays quiet."""

_IN_MODIFY, _IN_MOVED_TO, _IN_CREATE, _IN_Q_OVERFLOW = 0x2, 0x80, 0x100, 0x4000
_EVENT = struct.Struct("iIII")
"""Watch, what happened, cookie, length of the name that follows (inotify(7))."""
_MANY_EVENTS = 1 << 16

if IS_LINUX:
    import ctypes

    _libc = ctypes.CDLL(None, use_errno=True)


class FolderWatch:
    """Heard by the one thread that waits; rung by the kernel, and by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ringing, self._rope = os.pipe()
        for end in (self._ringing, self._rope):
            os.set_blocking(end, False)
        self._changes = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC) if IS_LINUX else -1
        self._pause = FASTEST_POLL_S
        self._is_closed = False

    def watch(self, *folders: Path) -> None:
        """Ring for what is made and written in `folders`, also if they were watched before."""
        if self._changes >= 0:
            for folder in folders:
                what = _IN_MODIFY | _IN_MOVED_TO | _IN_CREATE
                _libc.inotify_add_watch(self._changes, os.fsencode(folder), what)

    def ring(self) -> None:
        """End the wait, or the next one if nobody waits now."""
        with self._lock, contextlib.suppress(BlockingIOError):
            if not self._is_closed:
                os.write(self._rope, b"\0")

    def wait(self, *, moved: bool) -> bool:
        """Until there may be something new; True: it may be new files.

        `moved`: whether the last look has found something.
        """
        if self._changes < 0:
            self._pause = FASTEST_POLL_S if moved else min(self._pause * 2, SLOWEST_POLL_S)
            self._sleep(self._pause)
            return False
        if not self._sleep(UNTOLD_S, self._changes):
            return False
        self._sleep(GATHER_S)
        return self._has_new_files()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for fd in (self._ringing, self._rope, self._changes):
                if fd >= 0:
                    os.close(fd)

    def _sleep(self, seconds: float, *changes: int) -> bool:
        """Until that is over or somebody rings; True: one of `changes` was told."""
        sleeper = select.poll()
        for fd in (self._ringing, *changes):
            sleeper.register(fd, select.POLLIN)
        ready = {fd for fd, _ in sleeper.poll(seconds * 1000)}
        if self._ringing in ready:
            os.read(self._ringing, _MANY_EVENTS)
        return not ready.isdisjoint(changes)

    def _has_new_files(self) -> bool:
        found = False
        with contextlib.suppress(BlockingIOError):
            while told := os.read(self._changes, _MANY_EVENTS):
                at = 0
                while at < len(told):
                    _, what, _, length = _EVENT.unpack_from(told, at)
                    found = found or bool(what & (_IN_CREATE | _IN_Q_OVERFLOW))
                    at += _EVENT.size + length
        return found
