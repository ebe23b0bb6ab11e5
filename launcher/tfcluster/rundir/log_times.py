"""Tells when the lines of a log were written, from the time index that is written beside each log.

An entry of the index (`agent.tasks.output.TimeIndex`) is an offset of the log and the time at which
what follows was written, at most ten per second. Runs of older releases have no index. The file is
read in parts, because the index of a long run is large.
"""

from __future__ import annotations

import math
import os
import sys
from bisect import bisect_left, bisect_right
from pathlib import Path

from tfcluster.agent.regular_files import open_regular
from tfcluster.agent.tasks.output import TIMES_ENTRY, times_path

_SIZE = TIMES_ENTRY.size
_WINDOW = 1024
"""The entries that are read at once."""
_LATEST_TIME = 1e11
"""A limit for damaged files: no clock shows the year 5138."""


class LogTimes:
    """The times of one log, which may still grow."""

    def __init__(self, log: Path) -> None:
        self._path = times_path(os.fspath(log))
        self._offsets: list[int] = []
        self._times: list[float] = []
        self._end = 0.0
        """The offset from which on another part of the index must be read."""

    @property
    def exists(self) -> bool:
        return os.path.exists(self._path)

    def refresh(self) -> None:
        """Expect new entries at the end of the index; to be called before new lines are shown."""
        if self._end == math.inf:
            self._offsets = []

    def at(self, offset: int) -> float | None:
        """Return when the byte at `offset` was written (Unix time, within 0.1 s), if known.

        The time of a line is that of its last byte: a progress bar's last state.
        """
        if not self._offsets or not self._offsets[0] <= offset < self._end:
            self._load(offset)
        place = bisect_right(self._offsets, offset) - 1
        found = self._times[place] if place >= 0 else 0.0
        return found if 0.0 < found < _LATEST_TIME else None

    def find(self, moment: float) -> int | None:
        """Return the first offset written at or after `moment`; None if none is known."""
        try:
            with open_regular(self._path) as file:
                fd = file.fileno()
                number = bisect_left(_numbers(fd), moment, key=lambda n: _entry(fd, n)[1])
                return _entry(fd, number)[0] if number in _numbers(fd) else None
        except OSError:
            return None

    def _load(self, offset: int) -> None:
        """Read the part of the index that has the time of `offset`."""
        self._offsets, self._times, self._end = [], [], math.inf
        try:
            with open_regular(self._path) as file:
                fd = file.fileno()
                number = bisect_right(_numbers(fd), offset, key=lambda n: _entry(fd, n)[0])
                first = max(0, number - _WINDOW // 2)  # lines before may be next, or lines after
                raw = os.pread(fd, (_WINDOW + 1) * _SIZE, first * _SIZE)
        except OSError:
            return
        found = list(TIMES_ENTRY.iter_unpack(raw[: len(raw) // _SIZE * _SIZE]))
        if len(found) > _WINDOW:
            self._end = found.pop()[0]
        self._offsets = [entry[0] for entry in found]
        self._times = [entry[1] for entry in found]


def _numbers(fd: int) -> range:
    """Return the numbers of the whole entries: a crash may leave half an entry at the end."""
    return range(os.fstat(fd).st_size // _SIZE)


def _entry(fd: int, number: int) -> tuple[int, float]:
    raw = os.pread(fd, _SIZE, number * _SIZE)
    return TIMES_ENTRY.unpack(raw) if len(raw) == _SIZE else (sys.maxsize, math.inf)
