"""Requests to the coordinator of a live run, which may just start to listen, or stop doing so."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tfcluster.agent.error_text import describe_error
from tfcluster.errors import NodeLostError
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.waiting import Waiting

T = TypeVar("T")
LISTENS_WITHIN_S = 2.0
"""A coordinator that has just started does not listen yet; one about to exit no longer does."""


def ask(
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
