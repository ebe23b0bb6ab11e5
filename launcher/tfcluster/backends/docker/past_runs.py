"""Notes about which runs may have left something in docker, so that a daemon is asked only then.

A run that is about to create something in docker leaves a note in the home of all runs: its
daemon and its coordinator. The note is deleted once it is certain that nothing is left: the run
removed everything, or never reached the daemon, or the daemon later has nothing of it.
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
"""The folder in the home with one note per run; asking a daemon is the slowest part of `ps`."""


@dataclass(frozen=True, slots=True)
class Silent:
    """A daemon that does not answer."""

    daemon: str
    why: str
    runs: tuple[str, ...]
    """The runs of which it may still have something."""

    def __str__(self) -> str:
        return (
            f"docker ({self.daemon}) does not answer: {self.why}; it may still have containers or"
            f" networks of {', '.join(self.runs)}"
        )


@dataclass(frozen=True, slots=True)
class Found:
    """The answers of the daemons that were asked."""

    leftovers: list[Leftovers] = field(default_factory=list)
    silent: list[Silent] = field(default_factory=list)


def note(run_id: str) -> None:
    """Note that docker may have something of this run from now on."""
    from tfcluster.backends.docker.client import endpoint
    from tfcluster.backends.docker.leftovers import this_process

    path = _path(run_id)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_text(f"{endpoint()}\n{this_process()}\n")


def forget(run_id: str) -> None:
    """Delete a run's note: nothing is left of it, or the user removed the run."""
    with contextlib.suppress(OSError):
        _path(run_id).unlink()


def find_leftovers(*, patience_s: float, excluded: Collection[str] = ()) -> Found:
    """Return the leftovers of all runs of this host without a coordinator, except `excluded`."""
    noted: dict[str, list[str]] = {}
    for run_id, daemon, coordinator in _notes():
        from tfcluster.backends.docker import leftovers as docker_leftovers

        if run_id not in excluded and docker_leftovers.is_orphan(coordinator):
            noted.setdefault(daemon, []).append(run_id)
    found = Found()
    for daemon, runs in noted.items():
        _ask(daemon, None, runs, found, patience_s)
    return found


def find_leftovers_of(run_id: str, *, patience_s: float) -> Found:
    """Return the leftovers of one finished run, at the daemon it used."""
    found = Found()
    for noted, daemon, _ in _notes():
        if noted == run_id:
            _ask(daemon, run_id, [run_id], found, patience_s)
    return found


def _ask(
    daemon: str, run_id: str | None, noted: Collection[str], found: Found, patience_s: float
) -> None:
    """Add a daemon's answer to `found`, and forget those of the `noted` runs that left nothing."""
    from tfcluster.backends.docker import client
    from tfcluster.backends.docker import leftovers as docker_leftovers

    endpoint = client.Endpoint.parse(daemon)
    try:
        leftovers = docker_leftovers.find(endpoint, run_id, patience_s=patience_s)
    except docker_leftovers.SilentDockerError as error:
        found.silent.append(Silent(daemon, str(error), tuple(noted)))
        return
    found.leftovers.extend(leftovers)
    for run in set(noted).difference(left.run_id for left in leftovers):
        forget(run)


def remove_and_forget(left: Leftovers) -> str:
    """Remove leftovers and the run's note; return "", or docker's message if some of them stay."""
    from tfcluster.backends.docker import leftovers as docker_leftovers

    try:
        problem = docker_leftovers.remove(left)
    except docker_leftovers.SilentDockerError as error:
        return str(error)
    if not problem:
        forget(left.run_id)
    return problem


def forget_removed(run_id: str, *, patience_s: float) -> list[str]:
    """Forget a run whose folder is removed, unless its daemon answers that it has leftovers.

    Return a sentence for each daemon that does not answer; it is not asked about the run again.
    Leftovers of a daemon that answers are still found by `find_leftovers`.
    """
    silent = find_leftovers_of(run_id, patience_s=patience_s).silent
    if silent:
        forget(run_id)
    return [str(one) for one in silent]


def _path(run_id: str) -> Path:
    return home() / _NOTES / run_id


def _notes() -> Iterator[tuple[str, str, str]]:
    """Yield (run, daemon, coordinator) of each complete note."""
    folder = home() / _NOTES
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        with contextlib.suppress(OSError, ValueError):
            daemon, coordinator, end = path.read_text().split("\n")
            if not end:
                yield path.name, daemon, coordinator
