"""Ends an example job with one line instead of a traceback if the user can fix the problem."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tfcluster_workers import reporting
from tfcluster_workers.errors import JobError


@contextmanager
def exit_with_message(job: str) -> Iterator[None]:
    """Exit with code 1 and `job: message` on stderr if the block raises a JobError.

    The error is reported too, so that the launcher's summary shows the message and not only
    "exit code 1".
    """
    try:
        yield
    except JobError as error:
        kind, message = type(error).__name__, str(error)
        reporting.error(
            exception=kind, message=message, file=None, line=None, traceback="", cause=error.cause
        )
        sys.exit(f"{job}: {message}")
