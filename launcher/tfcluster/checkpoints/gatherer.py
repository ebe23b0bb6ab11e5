"""Bring the chief's checkpoints home while the run goes on; one object per run.

Its methods block (they copy gigabytes): call `look` in a thread, about every two seconds and
after a task said that it saved, and `cancel` from anywhere to make a running look return soon.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from posixpath import dirname

from tfcluster.checkpoints.completeness import Checkpoint, Entry, Kind, find
from tfcluster.checkpoints.copying import CancelledError, SourceChangedError
from tfcluster.checkpoints.following import Follower, Follows
from tfcluster.checkpoints.source import Source, source_of
from tfcluster.checkpoints.store import Gathered, NotWholeError, Store

LEAST_GAP_S = 0.5
"""Two looks closer than this prove nothing about a file that is being written."""
RETRY_S = 30.0
"""How long a checkpoint that could not be stored (disk full) is left alone."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a task said last of a path."""

    step: int
    at_ns: int | None
    """When, by the clock of its files; None: nobody knows."""

    def is_of(self, checkpoint: Checkpoint) -> bool:
        """Of this one, and not of what was at the same path before."""
        return self.at_ns is None or checkpoint.saved_ns <= self.at_ns


class Gatherer:
    """Watches one directory, fills one store, and keeps followers (evaluators) up to date."""

    def __init__(
        self,
        directory: Path | Source,
        store: Store,
        *,
        followers: Iterable[Path | Follows] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self._source = source_of(directory)
        self._followers = [Follower(f) if isinstance(f, Path) else f for f in followers]
        self._clock = clock
        self._before: tuple[float, tuple[Entry, ...]] | None = None
        self._told: dict[str, Told] = {}
        self._failed: dict[Checkpoint, float] = {}
        self._notes: list[str] = []
        self._backups: set[str] = set()
        self._unreadable: set[str] = set()
        self._cancelled = threading.Event()
        self._looking = threading.Lock()

    def look(self) -> list[Gathered]:
        """Gather what is complete and was unchanged since the last look; oldest first. What was
        gathered before its step was told is given again, with that step.

        Raises OSError and CancelledError where the directory itself cannot be looked into."""
        with self._looking:
            told = dict(self._told)
            now, seen = self._clock(), self._source.scan(stopped=self._cancelled.is_set)
            before, self._before = self._before, self._before or (now, seen)
            if before is None or now - before[0] < LEAST_GAP_S:
                return []
            self._before = (now, seen)
            return self._gather(seen, find(seen, before[1]), told)

    def final_look(self) -> list[Gathered]:
        """The same after the writer has exited: one look is enough, and failures are noted."""
        self._cancelled.clear()
        with self._looking:  # waiting for it may be cancelled, too
            self._failed.clear()
            self._unreadable.clear()  # noted again: it lacks for good now
            told = dict(self._told)
            seen = self._source.scan(stopped=self._cancelled.is_set)
            gathered = self._gather(seen, find(seen, None), told)
            for checkpoint, until in self._failed.items():
                if until == float("inf"):
                    self._note(f"{checkpoint.path} was not gathered: it is not whole")
            self._before = None
            return gathered

    def saved(self, path: str, step: int | None, *, at_ns: int | None = None) -> None:
        """Remember the step that a task reported for what it had saved at `path`, at that moment
        of the clock of its files."""
        if step is not None:
            relative = Path(path)
            if relative.is_absolute() and relative.is_relative_to(self._source.folder):
                relative = relative.relative_to(self._source.folder)
            self._told[relative.as_posix()] = Told(step, at_ns)

    def cancel(self) -> None:
        """Make the look that is under way, and later ones, return soon with nothing half-copied.

        Only `final_look` works again afterwards; it can itself be cancelled.
        """
        self._cancelled.set()

    def take_notes(self) -> list[str]:
        """What the user should know, each said once."""
        notes, self._notes = self._notes, []
        return notes

    def _gather(
        self, seen: Sequence[Entry], found: Sequence[Checkpoint], told: Mapping[str, Told]
    ) -> list[Gathered]:
        """`told`: what was told before the look at what was `seen`, so of nothing newer."""
        self._note_unreadable(seen)
        self._drop_finished_backups(seen)
        gathered = self._correct_steps(seen, told)
        for checkpoint in self._worth_copying(found):
            if self._cancelled.is_set():
                break
            if one := self._try(checkpoint, told.get(checkpoint.path)):
                gathered.append(one)
        self._remember_backups(seen)
        for follower in self._followers:
            self._bring_up_to_date(follower)
        kept = set(self.store.held)
        return sorted((g for g in gathered if g in kept), key=lambda g: g.checkpoint.saved_ns)

    def _worth_copying(self, found: Sequence[Checkpoint]) -> list[Checkpoint]:
        """New ones that the store would keep, the newest first: rotation takes the oldest."""
        series: dict[str, list[Checkpoint]] = defaultdict(list)
        for one in {*found, *(held.checkpoint for held in self.store.held)}:
            series[one.series].append(one)
        worth = []
        for members in series.values():
            members.sort(key=lambda one: one.saved_ns, reverse=True)
            worth += members[: 1 if members[0].kind is Kind.BACKUP else self.store.keep]
        new = [one for one in worth if one in found and not self.store.has(one)]
        new = [one for one in new if self._failed.get(one, 0.0) <= self._clock()]
        return sorted(new, key=lambda one: one.saved_ns, reverse=True)

    def _correct_steps(self, seen: Sequence[Entry], told: Mapping[str, Told]) -> list[Gathered]:
        """A task tells of a checkpoint when it is whole: it may be at home by then."""
        there, corrected = set(seen), []
        for held in self.store.held:
            word = told.get(held.checkpoint.path)
            if word is None or word.step == held.step or not word.is_of(held.checkpoint):
                continue
            if there.issuperset(held.checkpoint.files):
                with contextlib.suppress(OSError):  # a full disk: the next look tries again
                    corrected.append(self.store.correct(held, step=word.step))
        return corrected

    def _try(self, checkpoint: Checkpoint, told: Told | None) -> Gathered | None:
        step = checkpoint.step if told is None else told.step
        try:
            return self.store.add(
                checkpoint, self._source, step=step, stopped=self._cancelled.is_set
            )
        except NotWholeError:
            self._failed[checkpoint] = float("inf")
        except SourceChangedError:
            pass  # rotated or rewritten meanwhile: the next newest, or the next look
        except CancelledError:
            pass
        except OSError as error:
            self._failed[checkpoint] = self._clock() + RETRY_S
            self._note(f"{checkpoint.path} was not gathered: {error.strerror or error}")
        return None

    def _note_unreadable(self, seen: Sequence[Entry]) -> None:
        for path in {entry.path for entry in seen if entry.is_unreadable} - self._unreadable:
            self._unreadable.add(path)
            folder = self._source.folder / path
            self._note(f"{folder} cannot be read: no checkpoint in it is gathered")

    def _drop_finished_backups(self, seen: Sequence[Entry]) -> None:
        """A finished `fit` deletes its backup: putting it back would make the next one skip."""
        there = _folders_with_files(seen)
        for held in self.store.held:
            folder = _folder_of(held.checkpoint)
            if held.kind is Kind.BACKUP and seen and folder in self._backups - there:
                self._backups.discard(folder)
                self.store.forget(held)

    def _remember_backups(self, seen: Sequence[Entry]) -> None:
        held = {_folder_of(g.checkpoint) for g in self.store.held if g.kind is Kind.BACKUP}
        self._backups |= held & _folders_with_files(seen)

    def _bring_up_to_date(self, follower: Follows) -> None:
        try:
            follower.follow(self.store.held, stopped=self._cancelled.is_set)
        except (SourceChangedError, CancelledError):
            pass
        except OSError as error:
            self._note(f"{follower.directory} does not follow: {error.strerror or error}")

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)


def _folder_of(checkpoint: Checkpoint) -> str:
    return dirname(checkpoint.files[0].path)


def _folders_with_files(seen: Sequence[Entry]) -> set[str]:
    return {dirname(entry.path) for entry in seen if not entry.path.endswith("/")}
