"""Waits for a run and its coordinator, written once and driven with asyncio or without."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import TypeVar

from tfcluster.agent.error_text import describe_error
from tfcluster.errors import NodeLostError, UsageError
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot

LISTENS_WITHIN_S = 2.0
"""A coordinator that has just started does not listen yet; one about to exit no longer does."""
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


async def block_async(waiting: Waiting[T]) -> T:
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


def ask_coordinator(
    paths: RunPaths, read: Callable[[], RunSnapshot], send: Callable[[Path], T], command: str
) -> Waiting[T | None]:
    """Return what `send`, a request of `rundir.control`, returns; None if the run has ended.

    `send` gets the coordinator's socket; `read` reads the run's state; `command`: what a user types
    on the coordinator's own host. Raises NodeLostError if the coordinator does not answer.
    """
    until = time.monotonic() + LISTENS_WITHIN_S
    while not (state := read()).status.is_final:
        try:
            return send(registry.control_socket(paths, state))
        except (OSError, ValueError) as error:
            if registry.is_on_other_host(state) or time.monotonic() > until:
                raise _unanswered(state, error, command) from error
        yield
    return None


def change_run(
    paths: RunPaths, read: Callable[[], RunSnapshot], send: Callable[[Path], T], command: str
) -> T:
    """Return what `send` returns, as `ask_coordinator` does.

    Raises UsageError, which names the run, if it refuses or has ended.
    """
    try:
        answer = block(ask_coordinator(paths, read, send, command))
    except UsageError as error:
        raise UsageError(f"{paths.run_id}: {error.message}", fix=error.fix) from error
    if answer is None:
        resume = f"`tfcluster up SPEC --resume {paths.run_id}`"
        raise UsageError(f"{paths.run_id} has ended", fix=f"continue it: {resume}")
    return answer


def _unanswered(state: RunSnapshot, error: Exception, command: str) -> NodeLostError:
    if registry.is_on_other_host(state):
        return NodeLostError(
            f"the coordinator of {state.run} runs on {state.host}",
            fix=f"run on {state.host}: {command}",
        )
    return NodeLostError(
        f"the coordinator of {state.run} (pid {state.pid}) does not answer:"
        f" {describe_error(error)}",
        fix=f"kill {state.pid}; the agent then ends the tasks",
    )
