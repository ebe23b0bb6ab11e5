"""Wakes a view when its run folder changes, so that it sleeps while nothing happens.

On Linux the kernel reports changes (inotify). On other systems, and where the user's limit of
inotify instances is reached, the view polls, less often the longer nothing changes.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Sequence
from pathlib import Path

from tfcluster.agent.processes import IS_LINUX

BATCH_S = 0.05
"""Wait after a change: more usually follows, and is then read in one go."""
RECHECK_S = 1.0
"""Longest sleep without a change: inotify reports neither another host's change in a shared home
nor a process that was killed."""
FASTEST_POLL_S, SLOWEST_POLL_S = 0.02, 0.2
"""Shortest and longest pause where the view polls: it doubles while nothing changes."""

_CHANGED = 0x2 | 0x80 | 0x100
"""IN_MODIFY, IN_MOVED_TO and IN_CREATE (inotify(7))."""
_MANY_EVENTS = 1 << 16

if IS_LINUX:
    import ctypes

    _libc = ctypes.CDLL(None, use_errno=True)


class FolderWatch:
    """A wait for changes in folders; one thread waits, any thread may wake it."""

    def __init__(self, *, batch_s: float = BATCH_S) -> None:
        """Watch no folder yet; `wait` returns `batch_s` after a change."""
        self._batch_s = batch_s
        self._lock = threading.RLock()  # a signal handler may call `wake` within `wake`
        self._wake_reader, self._wake_writer = os.pipe()
        for fd in (self._wake_reader, self._wake_writer):
            os.set_blocking(fd, False)
        self._inotify_fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC) if IS_LINUX else -1
        self._pause = FASTEST_POLL_S
        self._is_closed = False
        self.inputs: Sequence[int] = ()
        """More descriptors that end a wait once they can be read."""

    def watch(self, folder: Path) -> None:
        """Report files created or written in `folder`."""
        if self._inotify_fd >= 0:
            _libc.inotify_add_watch(self._inotify_fd, os.fsencode(folder), _CHANGED)

    def wake(self) -> None:
        """End the current wait, or the next one if no thread is waiting."""
        with self._lock, contextlib.suppress(BlockingIOError):
            if not self._is_closed:
                os.write(self._wake_writer, b"\0")

    def wait(self, *, found_new: bool) -> None:
        """Wait until there may be something new.

        `found_new`: whether the last round found something new.
        """
        if self._inotify_fd < 0:
            self._pause = FASTEST_POLL_S if found_new else min(self._pause * 2, SLOWEST_POLL_S)
            self._sleep(self._pause)
        elif self._sleep(RECHECK_S, self._inotify_fd):
            self._sleep(self._batch_s)
            with contextlib.suppress(BlockingIOError):
                while os.read(self._inotify_fd, _MANY_EVENTS):
                    pass

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for fd in (self._wake_reader, self._wake_writer, self._inotify_fd):
                if fd >= 0:
                    os.close(fd)

    def _sleep(self, seconds: float, *fds: int) -> bool:
        """Sleep until `wake` or a readable descriptor; return True if one of `fds` is readable."""
        poll = select.poll()
        for fd in (self._wake_reader, *self.inputs, *fds):
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(seconds * 1000)}
        if self._wake_reader in ready:
            os.read(self._wake_reader, _MANY_EVENTS)
        return not ready.isdisjoint(fds)
