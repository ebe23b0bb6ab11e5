"""What docker still has of runs that are over; asked only where a run of this home used docker."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tfcluster.run.paths import RunPaths, home

if TYPE_CHECKING:
    from tfcluster.backends.docker_leftovers import Leftovers
    from tfcluster.plan.plan import Plan

_MARK = "docker"
"""A file in the home, with the daemons that runs have used: asking one takes longer than all else
that `ps` does."""


@dataclass(frozen=True, slots=True)
class Found:
    """The answers of all daemons that runs of this home have used."""

    leftovers: list[Leftovers] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    """Which did not answer, and why."""


def note(plan: Plan, home_dir: Path, paths: RunPaths | None = None) -> None:
    """Remember that there may be something to look for from now on, and where."""
    if not plan.images:
        return
    from tfcluster.backends.docker_client import endpoint

    mark, line = home_dir / _MARK, f"{endpoint()}\n"
    with contextlib.suppress(OSError):
        if paths is not None:
            paths.docker.write_text(line)
        if line not in _lines(mark):
            with mark.open("a") as file:
                file.write(line)


def look(*, patience_s: float) -> Found:
    """For leftovers of all runs whose coordinator is gone."""
    return _look(_lines(home() / _MARK), None, patience_s)


def look_for(run_id: str, paths: RunPaths | None = None, *, patience_s: float) -> Found:
    """For leftovers of one run, at the daemon it had; without `paths` at every one."""
    return _look(_lines(paths.docker if paths else home() / _MARK), run_id, patience_s)


def _look(noted: list[str], run_id: str | None, patience_s: float) -> Found:
    found = Found()
    for line in noted:
        from tfcluster.backends import docker_client, docker_leftovers

        where = docker_client.Endpoint.parse(line.strip())
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


def _lines(file: Path) -> list[str]:
    """Whole ones, each once; none where it is not there: then docker was never used."""
    try:
        text = file.read_text()
    except OSError:
        return []
    return list(dict.fromkeys(line for line in text.splitlines(keepends=True) if line[-1] == "\n"))
