"""What docker still has of runs that are over; asked only where a run of this home used docker."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tfcluster.plan.plan import Plan
from tfcluster.run.paths import RunPaths, home

if TYPE_CHECKING:
    from tfcluster.backends.docker_leftovers import Leftovers

_MARK = "docker"
"""A file in the home, with the daemons that runs have used: asking one takes longer than all else
that `ps` does."""


@dataclass(frozen=True, slots=True)
class Found:
    """The answers of all daemons that runs of this home have used."""

    leftovers: list[Leftovers] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    """Which did not answer, and why."""


def note(plan: Plan, home_dir: Path) -> None:
    """Remember that there may be something to look for from now on, and where."""
    if not plan.images:
        return
    from tfcluster.backends.docker_client import endpoint

    mark, line = home_dir / _MARK, f"{endpoint()}\n"
    with contextlib.suppress(OSError):
        if not mark.exists() or line not in mark.read_text():
            with mark.open("a") as file:
                file.write(line)


def has_containers(paths: RunPaths) -> bool:
    """Whether the run used docker."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return any("container" in node for node in json.loads(paths.plan.read_text())["nodes"])
    return False


def look(run_id: str | None = None, *, patience_s: float) -> Found:
    """For leftovers of `run_id`, or of all runs whose coordinator is gone."""
    found = Found()
    for line in _noted():
        from tfcluster.backends import docker_client, docker_leftovers

        where = docker_client.Endpoint.parse(line)
        try:
            found.leftovers.extend(docker_leftovers.find(where, run_id, patience_s=patience_s))
        except docker_leftovers.SilentDockerError as error:
            found.silent.append(f"docker ({where}): {error}")
    return found


def remove(left: Leftovers) -> str:
    """Empty, or what docker said where some of it stays."""
    from tfcluster.backends import docker_leftovers

    try:
        return docker_leftovers.remove(left)
    except docker_leftovers.SilentDockerError as error:
        return str(error)


def _noted() -> list[str]:
    try:
        return list(dict.fromkeys((home() / _MARK).read_text().split("\n")[:-1]))
    except OSError:
        return []
