"""Notes about which runs may have left something at a backend, so that it is asked only then.

A run that is about to create something outside this machine's processes (containers, networks)
leaves a note in the home of all runs: the backend, its endpoint and the coordinator. The note is
deleted once it is certain that nothing is left: the run removed everything, or never reached the
backend, or the backend later has nothing of it. The note about a job is left by who submits it, and
counts only once its run is over or deleted.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from tfcluster import kinds
from tfcluster.rundir.paths import RunPaths, home
from tfcluster.rundir.registry import StateFile, start_of

_NOTES = "leftovers"
"""The folder in the home with one note per run; asking a backend is the slowest part of `ps`."""
PATIENCE_S = 8.0
"""Seconds that a command which only shows something waits for a backend's answer."""


class SilentError(Exception):
    """A backend did not answer; the text says why."""

    how = "does not answer"
    """The words between the name of the backend and the text."""


class RefusedError(SilentError):
    """A backend answered that this user may not ask."""

    how = "refuses to answer"


class UnreachableError(SilentError):
    """Nothing on this machine leads to the backend any more."""

    how = "cannot be reached from here"


class Finder(Protocol):
    """The module `kinds.BackendKind.leftovers`. Its functions raise SilentError."""

    def find(
        self, endpoint: str, run_id: str | None, *, patience_s: float
    ) -> Mapping[str, Sequence[str]]:
        """Return run → names of what it left; None: all runs whose coordinator `is_orphan`."""

    def remove(self, endpoint: str, run_id: str) -> str:
        """Remove what a run left; return "", or the backend's message if some of it stays."""


@dataclass(frozen=True, slots=True)
class Place:
    """A backend, and which of its endpoints a run used."""

    backend: str
    endpoint: str
    """The daemon of docker: ``DOCKER_HOST=…``."""

    @property
    def finder(self) -> Finder:
        return cast("Finder", import_module(kinds.get(self.backend).leftovers or ""))


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The names of all that one run left behind at one place."""

    run_id: str
    place: Place
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Silent:
    """A place that does not say what it has."""

    place: Place
    why: SilentError
    runs: tuple[str, ...]
    """The runs of which it may still have something."""

    def __str__(self) -> str:
        return (
            f"{self.place.backend} ({self.place.endpoint}) {self.why.how}: {self.why}; it may still"
            f" have what belongs to {', '.join(self.runs)}"
        )

    @property
    def fix(self) -> str:
        """The command that gives up on what it may have."""
        return f"`tfcluster rm {' '.join(self.runs)}` gives up on what it may have"


@dataclass(frozen=True, slots=True)
class LeftoverAnswers:
    """The answers of the backends that were asked."""

    leftovers: list[Leftovers] = field(default_factory=list)
    silent: list[Silent] = field(default_factory=list)


def this_process() -> str:
    """Return the name of this coordinator in labels and notes."""
    pid = os.getpid()
    return f"{socket.gethostname()}/{os.getuid()}/{pid}/{start_of(pid)}"


def is_orphan(coordinator: str) -> bool:
    """Return whether `coordinator` ran as this user on this host and is gone."""
    parts = coordinator.split("/")
    if parts[:2] != [socket.gethostname(), str(os.getuid())] or len(parts) != 4:
        return False
    return not parts[2].isdecimal() or str(start_of(int(parts[2]))) != parts[3]


def is_live_job(folder: Path) -> bool:
    """Return whether `folder` belongs to a run that has a job and is not over."""
    snapshot = StateFile(RunPaths(folder)).read()
    return snapshot is not None and not snapshot.status.is_final and snapshot.job is not None


def note(run_id: str, backend: str, endpoint: str) -> None:
    """Note that the backend may have something of this run from now on."""
    path = _path(run_id)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_text(f"{backend}\n{endpoint}\n{this_process()}\n")


def endpoint_of(run_id: str) -> str:
    """Return the endpoint at which the backend may have something of a run; "" if none is noted."""
    return next((place.endpoint for noted, place, _ in _notes() if noted == run_id), "")


def forget(run_id: str) -> None:
    """Delete a run's note: nothing is left of it, or the user removed the run."""
    with contextlib.suppress(OSError):
        _path(run_id).unlink()


def find_leftovers(
    *, excluded: Collection[str] = (), patience_s: float = PATIENCE_S
) -> LeftoverAnswers:
    """Return the leftovers of all runs of this host without a coordinator, except `excluded`."""
    noted: dict[Place, list[str]] = {}
    for run_id, place, coordinator in _notes():
        is_left = run_id not in excluded and is_orphan(coordinator)
        if is_left and not is_live_job(RunPaths.of(run_id).root):
            noted.setdefault(place, []).append(run_id)
    answers = LeftoverAnswers()
    for place, runs in noted.items():
        _ask(place, None, runs, answers, patience_s)
    return answers


def find_leftovers_of(run_id: str, *, patience_s: float = PATIENCE_S) -> LeftoverAnswers:
    """Return the leftovers of one finished run, at the endpoint it used."""
    answers = LeftoverAnswers()
    for noted, place, _ in _notes():
        if noted == run_id:
            _ask(place, run_id, [run_id], answers, patience_s)
    return answers


def _ask(
    place: Place,
    run_id: str | None,
    noted: Collection[str],
    answers: LeftoverAnswers,
    patience_s: float,
) -> None:
    """Add a backend's answer to `answers`, and forget the `noted` runs that left nothing."""
    try:
        left = place.finder.find(place.endpoint, run_id, patience_s=patience_s)
    except SilentError as error:
        answers.silent.append(Silent(place, error, tuple(noted)))
        return
    answers.leftovers.extend(Leftovers(run, place, tuple(names)) for run, names in left.items())
    for run in set(noted).difference(left):
        forget(run)


def remove_and_forget(left: Leftovers) -> str:
    """Remove leftovers and the run's note; return "", or why some of them stay."""
    try:
        problem = left.place.finder.remove(left.place.endpoint, left.run_id)
    except SilentError as error:
        return str(error)
    if not problem:
        forget(left.run_id)
    return problem


def forget_removed(run_id: str) -> list[str]:
    """Forget a run whose folder is removed, unless its backend answers that it has leftovers.

    Return a sentence for each backend that does not answer; it is not asked about the run again.
    Leftovers of a backend that answers are still found by `find_leftovers`.
    """
    silent = find_leftovers_of(run_id).silent
    if silent:
        forget(run_id)
    return list(map(str, silent))


def is_noted(run_id: str) -> bool:
    """Return whether a backend may have something of a run, whose folder may be gone."""
    return any(noted == run_id for noted, _, _ in _notes())


def _path(run_id: str) -> Path:
    return home() / _NOTES / run_id


def _notes() -> Iterator[tuple[str, Place, str]]:
    """Yield (run, place, coordinator) of each complete note of a backend that exists."""
    folder = home() / _NOTES
    for path in sorted(folder.iterdir()) if os.path.isdir(folder) else ():
        with contextlib.suppress(OSError, ValueError):
            backend, endpoint, coordinator, end = path.read_text().split("\n")
            if not end and kinds.is_known(backend):
                yield path.name, Place(backend, endpoint), coordinator
