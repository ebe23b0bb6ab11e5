"""Work on files in threads, waited for only as long as it moves.

A file system that stands still keeps a thread for ever, and nothing can call it back: the run
goes on without it, and the process ends over it (`cli.main.entry`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

SILENCE_S = 120.0
"""Longer than a host's files are waited for (`far_files.SILENCE_S`), which is part of such work."""
_STEP_S = 5.0


class StalledError(OSError):
    """The work has not moved for too long; its thread may go on for ever."""


class Threads:
    """Those of one run. Its own: asyncio waits for the end of the ones that it lends."""

    def __init__(self, moved: Callable[[], int], *, silence_s: float = SILENCE_S) -> None:
        """`moved` grows while work moves."""
        self._moved, self._silence_s = moved, silence_s
        self._threads = ThreadPoolExecutor(thread_name_prefix="files")

    async def do(self, work: Callable[[], T], what: str) -> T:
        """Return what `work` returns; raises what it raises, and StalledError, which names `what`.

        Counted are short steps: we may have been stopped ourselves (Ctrl-Z).
        """
        under_way = asyncio.get_running_loop().run_in_executor(self._threads, work)
        silent_s, before = 0.0, self._moved()
        step_s = min(_STEP_S, self._silence_s / 4)
        while silent_s < self._silence_s:
            done, _ = await asyncio.wait([under_way], timeout=step_s)
            if done:
                return under_way.result()
            now = self._moved()
            silent_s, before = (silent_s + step_s if now == before else 0.0), now
        under_way.add_done_callback(lambda late: late.cancelled() or late.exception())
        raise StalledError(
            f"{what} has not moved for {self._silence_s:.0f} s: a file system of this machine"
            " stands still"
        )
