"""What docker still has of runs that are over; asked only where a run of this home used docker."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from tfcluster.plan.plan import Plan
from tfcluster.run.paths import home

if TYPE_CHECKING:
    from tfcluster.backends.docker_leftovers import Leftovers

_MARK = "docker"
"""A file in the home: asking docker takes longer than all else that `ps` does."""


def note(plan: Plan, home_dir: Path) -> None:
    """Remember that there may be something to look for from now on."""
    if plan.images:
        with contextlib.suppress(OSError):
            (home_dir / _MARK).touch()


def leftovers(run_id: str | None = None) -> list[Leftovers]:
    """Of `run_id`, or of all runs whose coordinator is gone."""
    if not (home() / _MARK).exists():
        return []
    from tfcluster.backends import docker_leftovers

    return docker_leftovers.find(run_id)


def remove(left: Leftovers) -> str:
    """Empty, or what docker said where it could not."""
    from tfcluster.backends import docker_leftovers

    return docker_leftovers.remove(left)
