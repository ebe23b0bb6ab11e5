"""The last step of a process that trains, which it notes in memory that it shares with its agent.

It cannot report its last steps itself if it is killed, crashes or calls `os._exit`; nor that it has
not left `fit`; nor, while a long step or an evaluation runs, the report that it holds back.
"""

from __future__ import annotations

import contextlib
import os
import struct

_STEP = struct.Struct("<q")
_FITS_AT = _STEP.size
HELD_S = 1.0
"""Seconds without progress after which a step that was not reported waits for the next one, which
may take long: twice the interval of `tfcluster_workers.reporting`."""


class LastStep:
    """The last step of one process."""

    def __init__(self) -> None:
        self._page = -1
        self._reported: object = None
        self.check_at: float | None = None
        """The time at which a report is held back if one is `unreported`."""

    def take(self, fd: int) -> None:
        """Take the descriptor of the memory; a process has one (`tfcluster_workers.last_step`)."""
        os.set_inheritable(fd, False)
        self.close()
        self._page = fd

    def note_reported(self, step: object, *, check_at: float | None = None) -> None:
        """Note that progress at `step` was passed on."""
        self._reported, self.check_at = step, check_at

    def unreported(self) -> int | None:
        """Return the step that the process has reached, if it has not reported it."""
        step = self._read(0)
        return step if step >= 0 and step != self._reported else None

    def is_in_fit(self) -> bool:
        """Return whether a call of `fit` has not returned."""
        return self._read(_FITS_AT) > 0

    def _read(self, offset: int) -> int:
        if self._page >= 0:
            with contextlib.suppress(OSError):
                noted = os.pread(self._page, _STEP.size, offset)
                if len(noted) == _STEP.size:
                    return int(_STEP.unpack(noted)[0])
        return -1

    def close(self) -> None:
        if self._page >= 0:
            os.close(self._page)
            self._page = -1
