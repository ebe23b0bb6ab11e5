"""Keep another task's directory in step with the store while it reads: the evaluator's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Protocol

from tfcluster.checkpoints.completeness import Checkpoint, Kind
from tfcluster.checkpoints.copying import Stopped, never, replace_verified
from tfcluster.checkpoints.restore import name_checkpoints
from tfcluster.checkpoints.store import Gathered

AT_LEAST = 5
"""Checkpoints left in place for a reader that is behind, whatever the store keeps."""


class Follows(Protocol):
    """A directory that is kept in step, wherever it lies."""

    @property
    def directory(self) -> PurePath:
        """As its own task names it."""
        ...

    def follow(self, held: Sequence[Gathered], *, stopped: Stopped = never) -> None:
        """Add what is new. Raises SourceChangedError, CancelledError, OSError; the next call
        goes on."""
        ...


class Follower:
    """A directory that gets each new checkpoint; only what was put here is ever removed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._placed: list[Gathered] = []

    @property
    def directory(self) -> Path:
        return self._directory

    def follow(self, held: Sequence[Gathered], *, stopped: Stopped = never) -> None:
        """Add what is new, each file whole at once, the ``checkpoint`` file last.

        Raises SourceChangedError, CancelledError, OSError; the next call goes on.
        """
        # A restart may have replaced the whole directory meanwhile.
        self._placed = [placed for placed in self._placed if self._is_there(placed)]
        known: set[Checkpoint] = {placed.checkpoint for placed in self._placed}
        new = [g for g in held if g.kind is not Kind.BACKUP and g.checkpoint not in known]
        for gathered in new:
            for entry in gathered.checkpoint.all_files:
                target = self.directory / entry.path
                replace_verified(gathered.file(entry), target, entry, stopped=stopped)
            self._placed.append(gathered)
        if new:
            self._remove_all_but({*(g.checkpoint for g in held), *self._last_checkpoints()})

    def _is_there(self, placed: Gathered) -> bool:
        return all((self.directory / entry.path).exists() for entry in placed.checkpoint.files)

    def _last_checkpoints(self) -> list[Checkpoint]:
        return [placed.checkpoint for placed in self._placed[-AT_LEAST:]]

    def _remove_all_but(self, kept: set[Checkpoint]) -> None:
        doomed = [placed for placed in self._placed if placed.checkpoint not in kept]
        self._placed = [placed for placed in self._placed if placed.checkpoint in kept]
        name_checkpoints(self.directory, self._placed)
        still = {entry.path for placed in self._placed for entry in placed.checkpoint.all_files}
        for old in doomed:
            for entry in reversed(old.checkpoint.files):
                if entry.path not in still:
                    (self.directory / entry.path).unlink(missing_ok=True)
