"""What docker may still have of runs that are over; it is asked only where that is possible.

A run that is about to make something with docker leaves a note in the home: which daemon, and who
coordinates it. The note goes once it is certain that nothing is left: the run has removed what it
made, or never reached the daemon, or the daemon says later that it has nothing of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tfcluster.rundir.paths import home

if TYPE_CHECKING:
    from tfcluster.backends.docker.leftovers import Leftovers

_NOTES = "containers"
"""Folder in the home with one note a run: asking a daemon takes longer than all else that `ps`
does."""


@dataclass(frozen=True, slots=True)
class Silent:
    """A daemon that does not answer."""

    where: str
    why: str
    runs: tuple[str, ...]
    """Those of which it may still have something."""

    def __str__(self) -> str:
        return (
            f"docker ({self.where}) does not answer: {self.why}; what it may still have of"
            f" {', '.join(self.runs)} is not known"
        )


@dataclass(frozen=True, slots=True)
class Found:
    """The answers of the daemons that were asked."""

    leftovers: list[Leftovers] = field(default_factory=list)
    silent: list[Silent] = field(default_factory=list)


def note(run_id: str) -> None:
    """From now on there may be something to look for."""
    from tfcluster.backends.docker.client import endpoint
    from tfcluster.backends.docker.leftovers import this_process

    path = _path(run_id)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_text(f"{endpoint()}\n{this_process()}\n")


def forget(run_id: str) -> None:
    """It is certain that nothing is left of a run, or its user has removed it."""
    with contextlib.suppress(OSError):
        _path(run_id).unlink()


def look(*, patience_s: float, but: Collection[str] = ()) -> Found:
    """For leftovers of all runs of this host whose coordinator is gone, `but` some."""
    noted: dict[str, list[str]] = {}
    for run_id, where, coordinator in _notes():
        from tfcluster.backends.docker import leftovers as docker_leftovers

        if run_id not in but and docker_leftovers.is_orphan(coordinator):
            noted.setdefault(where, []).append(run_id)
    found = Found()
    for where, runs in noted.items():
        _ask(where, None, runs, found, patience_s)
    return found


def look_for(run_id: str, *, patience_s: float) -> Found:
    """For leftovers of one run that is over, at the daemon it had."""
    found = Found()
    for noted, where, _ in _notes():
        if noted == run_id:
            _ask(where, run_id, [run_id], found, patience_s)
    return found


def _ask(
    where: str, run_id: str | None, noted: Collection[str], found: Found, patience_s: float
) -> None:
    """Add the answer to `found`; of the `noted` runs those that left nothing are forgotten."""
    from tfcluster.backends.docker import client
    from tfcluster.backends.docker import leftovers as docker_leftovers

    endpoint = client.Endpoint.parse(where)
    try:
        leftovers = docker_leftovers.find(endpoint, run_id, patience_s=patience_s)
    except docker_leftovers.SilentDockerError as error:
        found.silent.append(Silent(where, str(error), tuple(noted)))
        return
    found.leftovers.extend(leftovers)
    for run in set(noted).difference(left.run_id for left in leftovers):
        forget(run)


def remove_and_forget(left: Leftovers) -> str:
    """Empty, or what docker said where some of it stays."""
    from tfcluster.backends.docker import leftovers as docker_leftovers

    try:
        said = docker_leftovers.remove(left)
    except docker_leftovers.SilentDockerError as error:
        return str(error)
    if not said:
        forget(left.run_id)
    return said


def let_go(run_id: str, *, patience_s: float) -> list[str]:
    """The folder of a run is removed: a daemon that does not answer is not asked for it again.

    What is to be said of that; what a daemon does have of it `look` goes on to find.
    """
    silent = look_for(run_id, patience_s=patience_s).silent
    if silent:
        forget(run_id)
    return [str(one) for one in silent]


def _path(run_id: str) -> Path:
    return home() / _NOTES / run_id


def _notes() -> Iterator[tuple[str, str, str]]:
    """(run, daemon, coordinator) of each whole note."""
    folder = home() / _NOTES
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        with contextlib.suppress(OSError, ValueError):
            where, coordinator, end = path.read_text().split("\n")
            if not end:
                yield path.name, where, coordinator
