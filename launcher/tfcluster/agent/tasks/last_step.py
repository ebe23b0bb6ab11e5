"""The last step of a process that trains, which it notes in memory that it shares with its agent.

It cannot report its last steps itself if it is killed, or crashes.
"""

from __future__ import annotations

import contextlib
import os
import struct

_STEP = struct.Struct("<q")


class LastStep:
    """The last step of one process."""

    def __init__(self) -> None:
        self._page = -1
        self._reported: object = None

    def take(self, fd: int) -> None:
        """Take the descriptor of the memory; a process has one (`tfcluster_workers.last_step`)."""
        os.set_inheritable(fd, False)
        self.close()
        self._page = fd

    def note_reported(self, step: object) -> None:
        """Note that progress at `step` was passed on."""
        self._reported = step

    def unreported(self) -> int | None:
        """Return the step that the process has reached, if it has not reported it."""
        if self._page < 0:
            return None
        with contextlib.suppress(OSError):
            noted = os.pread(self._page, _STEP.size, 0)
            if len(noted) == _STEP.size and 0 <= (step := _STEP.unpack(noted)[0]) != self._reported:
                return int(step)
        return None

    def close(self) -> None:
        if self._page >= 0:
            os.close(self._page)
            self._page = -1
