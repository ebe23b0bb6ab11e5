"""Waits for changes of a run folder, written once and driven with asyncio or without."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Final, TypeVar

PAUSE_S: Final = 0.05

T = TypeVar("T")
Waiting = Generator[None, None, T]
"""A wait that yields whenever nothing has happened, and returns its result."""


def block(waiting: Waiting[T], timeout: float | None = None) -> T:
    """Return the result of a wait; raises TimeoutError after `timeout` seconds."""
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        try:
            next(waiting)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if until is not None and time.monotonic() >= until:
            raise TimeoutError("the run has not ended in time; it continues")
        time.sleep(PAUSE_S)


async def pause(waiting: Waiting[T]) -> T:
    """Return the result of a wait."""
    import asyncio  # slow, and most callers do not need it

    while True:
        try:
            next(waiting)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        await asyncio.sleep(PAUSE_S)


def each(items: Iterator[T | None]) -> Iterator[T]:
    """Yield the items; None means that there is nothing yet."""
    for item in items:
        if item is not None:
            yield item
        else:
            time.sleep(PAUSE_S)


async def each_async(items: Iterator[T | None]) -> AsyncIterator[T]:
    """Yield the items; None means that there is nothing yet."""
    import asyncio

    for item in items:
        if item is not None:
            yield item
        else:
            await asyncio.sleep(PAUSE_S)
