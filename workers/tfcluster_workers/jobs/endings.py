"""How a ready-made job ends on its user's mistake: with one line, not with a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tfcluster_workers.errors import JobError


@contextmanager
def told(job: str) -> Iterator[None]:
    """Exit 1 with `job: message` on stderr where the block raises a JobError."""
    try:
        yield
    except JobError as error:
        sys.exit(f"{job}: {error}")
