"""Waits for changes of a run folder, written once and driven with asyncio or without."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Generator, Iterator
from typing import TypeVar

_FASTEST_S, _SLOWEST_S = 0.01, 0.1
"""Shortest and longest pause: it doubles while nothing happens."""

T = TypeVar("T")
Waiting = Generator[None, None, T]
"""A wait that yields whenever nothing has happened, and returns its result."""


def block(waiting: Waiting[T], timeout: float | None = None, still: str = "") -> T:
    """Return the result of a wait; raises TimeoutError after `timeout` seconds.

    `still`: what the run then does, for the message.
    """
    pauses = _pauses()
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        try:
            next(waiting)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if until is not None and time.monotonic() >= until:
            raise TimeoutError(f"the run has not ended in time; it {still}")
        time.sleep(next(pauses))


async def pause(waiting: Waiting[T]) -> T:
    """Return the result of a wait."""
    import asyncio  # slow, and most callers do not need it

    pauses = _pauses()
    while True:
        try:
            next(waiting)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        await asyncio.sleep(next(pauses))


def each(items: Iterator[T | None]) -> Iterator[T]:
    """Yield the items; None means that there is nothing yet."""
    pauses = _pauses()
    for item in items:
        if item is not None:
            pauses = _pauses()
            yield item
        else:
            time.sleep(next(pauses))


async def each_async(items: Iterator[T | None]) -> AsyncIterator[T]:
    """Yield the items; None means that there is nothing yet."""
    import asyncio

    pauses, until = _pauses(), time.monotonic() + _FASTEST_S
    for item in items:
        if item is not None:
            pauses = _pauses()
            yield item
        if item is None or time.monotonic() > until:  # many items leave the loop no time
            await asyncio.sleep(0 if item is not None else next(pauses))
            until = time.monotonic() + _FASTEST_S


def _pauses() -> Iterator[float]:
    pause_s = _FASTEST_S
    while True:
        yield pause_s
        pause_s = min(pause_s * 2, _SLOWEST_S)
