"""The end of a process waits for threads that use a run, because Python would join them.

Python stops the executors that a coordinator needs before it joins any thread. Runs must therefore
end earlier, in `threading`'s exit functions.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final

_NEXT_JOB_S: Final = 0.2
"""Seconds in which a thread of a pool takes its next job."""
_users: list[threading.Thread] = []
"""The threads that start a run or wait for one, once per call; daemon threads are not joined."""
_stops: list[Callable[[], None]] = []
"""The function that stops the runs which no thread waits for."""


@contextlib.contextmanager
def delaying_exit() -> Iterator[None]:
    """Let the end of the process wait for this thread while the block runs."""
    thread = threading.current_thread()
    if thread.daemon or thread is threading.main_thread():
        yield
        return
    with contextlib.suppress(RuntimeError):  # the process is already ending
        _register()
    _users.append(thread)
    try:
        yield
    finally:
        _users.remove(thread)


def stop_at_exit(stop: Callable[[], None]) -> None:
    """Call `stop` at the end of this process, when no thread uses a run any more.

    Raises RuntimeError if the process is already ending.
    """
    _register()
    _stops[:] = [stop]


@cache
def _register() -> None:
    # Its own exit function must run after this one.
    import concurrent.futures.thread  # noqa: F401

    # `atexit` would come too late: by then threads, which the stop needs, cannot start.
    threading._register_atexit(_exit)  # type: ignore[attr-defined]


def _exit() -> None:
    with contextlib.suppress(KeyboardInterrupt):  # stops the runs after all
        while _is_used():
            while _is_used():
                time.sleep(0.02)
            time.sleep(_NEXT_JOB_S)
    for stop in _stops:
        stop()


def _is_used() -> bool:
    return any(thread.is_alive() for thread in list(_users))
