"""Restoring: put one complete state into every task's directory (`put_back`), find the newest
checkpoint, and keep other directories up to date with the store (`LocalFollower`).

TensorFlow's strategies need every worker to restore the same step, so before an attempt a task's
directory holds exactly this state, or nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from posixpath import basename
from typing import Protocol

from tfcluster.checkpoints import copying
from tfcluster.checkpoints.completeness import Checkpoint, Kind, Newest, find, oldest_first
from tfcluster.checkpoints.copying import Stopped, never, replacing, sync_folder
from tfcluster.checkpoints.sources import scan
from tfcluster.checkpoints.store import Gathered

_INCOMING = ".incoming-"
_REPLACED = ".replaced"

KEPT_FOR_READERS = 5
"""The number of checkpoints that stay for a slow reader, however few the store keeps."""


def put_back(state: Sequence[Gathered], directories: Iterable[Path]) -> None:
    """Make each directory hold exactly `state` (see `Store.state`), all of them or none.

    Everything is first copied next to the directories and then renamed; a folder beside each one
    keeps its previous contents. Raises OSError before anything is replaced, SourceChangedError if
    the store is damaged.
    """
    targets = list(directories)
    staged: list[Path] = []
    try:
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            staging = tempfile.mkdtemp(prefix=f"{target.name}{_INCOMING}", dir=target.parent)
            staged.append(Path(staging))
            fill(Path(staging), state)
        for new, target in zip(staged, targets, strict=True):
            _swap(new, target)
    finally:
        for leftover in staged:
            shutil.rmtree(leftover, ignore_errors=True)
    if state:  # for an empty folder no start needs to wait for the disk
        for target in targets:
            sync_folder(target.parent)


def newest_of(state: Iterable[Gathered]) -> Newest:
    """Return the newest checkpoint with a known step, else the newest; a backup only if alone.

    `state`: oldest first.
    """
    best = max(
        reversed([*state]),
        key=lambda g: (g.step is not None, g.kind is not Kind.BACKUP),
        default=None,
    )
    return Newest(best.step, best.checkpoint.name) if best else Newest()


def fill(folder: Path, state: Sequence[Gathered]) -> None:
    """Copy `state` into `folder` under the chief's file names, with its ``checkpoint`` files."""
    for gathered in state:
        for entry in gathered.checkpoint.all_files:
            gathered.copy(entry, folder / entry.path)
    name_checkpoints(folder, state)


def name_checkpoints(folder: Path, gathered: Iterable[Gathered]) -> None:
    """Write a ``checkpoint`` file into each folder below `folder` that holds a prefix."""
    by_folder: dict[str, list[copying.Prefix]] = defaultdict(list)
    for one in oldest_first(gathered, lambda one: one.age):
        for entry in one.checkpoint.files:
            prefix = entry.path.removesuffix(".index")
            if one.kind is not Kind.SAVED_MODEL and prefix != entry.path:
                inside, _, name = prefix.rpartition("/")
                by_folder[inside].append(copying.Prefix(name, one.saved_ns / 1e9))
    for inside, prefixes in by_folder.items():
        copying.write(folder / inside, prefixes)


def newest_in(shared: str | None, reported: Mapping[str, int]) -> Newest:
    """Return the newest complete checkpoint in storage that all tasks share.

    `reported`: path → step as the chief reported them, oldest first. A reported step overrides
    the one in the name; reports are the only source if the storage is not mounted here. Raises
    OSError.
    """
    if shared is None or not os.path.isdir(shared):
        return newest_reported(reported)

    def step(checkpoint: Checkpoint) -> int | None:
        return reported.get(str(Path(shared) / checkpoint.path), checkpoint.step)

    found = find(scan(Path(shared)), None)
    ordered = oldest_first(found, lambda one: one.age(step=step(one), saved_ns=one.saved_ns))
    return Newest(step(ordered[-1]), ordered[-1].name) if ordered else Newest()


def newest_reported(reported: Mapping[str, int]) -> Newest:
    """Return the checkpoint that the chief reported last."""
    path, step = [*reported.items()][-1] if reported else ("", None)
    return Newest(step, basename(path) or None)


class Follower(Protocol):
    """A directory, on any machine, that is kept up to date with the store."""

    @property
    def directory(self) -> PurePath:
        """The directory's path on its task's machine."""

    def follow(self, held: Sequence[Gathered], *, stopped: Stopped = never) -> None:
        """Add new checkpoints; after an error the next call continues.

        Raises SourceChangedError, CancelledError, OSError.
        """


class LocalFollower:
    """A directory of this machine that gets each new checkpoint; foreign files stay untouched."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._placed: list[Gathered] = []

    def follow(self, held: Sequence[Gathered], *, stopped: Stopped = never) -> None:
        """Add new checkpoints, each file atomically and the ``checkpoint`` file last."""
        # A restart may have replaced the whole directory meanwhile.
        self._placed = [placed for placed in self._placed if self._is_there(placed)]
        known: set[Checkpoint] = {placed.checkpoint for placed in self._placed}
        new = [g for g in held if g.kind is not Kind.BACKUP and g.checkpoint not in known]
        for gathered in new:
            for entry in gathered.checkpoint.all_files:
                target = self.directory / entry.path
                with replacing(target) as partial:
                    gathered.copy(entry, partial, stopped=stopped)
            self._placed.append(gathered)
        if new:
            last = self._placed[-KEPT_FOR_READERS:]
            self._remove_all_but({g.checkpoint for g in (*held, *last)})

    def _is_there(self, placed: Gathered) -> bool:
        return all((self.directory / entry.path).exists() for entry in placed.checkpoint.files)

    def _remove_all_but(self, kept: set[Checkpoint]) -> None:
        removed = [placed for placed in self._placed if placed.checkpoint not in kept]
        self._placed = [placed for placed in self._placed if placed.checkpoint in kept]
        name_checkpoints(self.directory, self._placed)
        needed = {entry.path for placed in self._placed for entry in placed.checkpoint.all_files}
        for old in removed:
            for entry in reversed(old.checkpoint.files):
                if entry.path not in needed:
                    (self.directory / entry.path).unlink(missing_ok=True)


def _swap(new: Path, target: Path) -> None:
    """Rename `new` to `target`; a `target` that is not empty is kept under another name."""
    if target.is_dir() and any(target.iterdir()):
        replaced = target.with_name(f"{target.name}{_REPLACED}")
        shutil.rmtree(replaced, ignore_errors=True)
        target.rename(replaced)
    elif target.is_dir():
        target.rmdir()
    new.chmod(0o755)
    new.rename(target)
