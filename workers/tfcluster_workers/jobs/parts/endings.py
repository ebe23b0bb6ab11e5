"""How a ready-made job ends on its user's mistake: with one line, not with a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tfcluster_workers import reporting
from tfcluster_workers.errors import JobError


@contextmanager
def told(job: str) -> Iterator[None]:
    """Exit 1 with `job: message` on stderr where the block raises a JobError.

    The launcher hears of it, too: its summary says the message and not only "exit code 1".
    """
    try:
        yield
    except JobError as error:
        kind, message = type(error).__name__, str(error)
        reporting.error(exception=kind, message=message, file=None, line=None, traceback="")
        sys.exit(f"{job}: {message}")
