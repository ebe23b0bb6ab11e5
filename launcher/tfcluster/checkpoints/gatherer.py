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

from tfcluster.agent import budgets
from tfcluster.agent.error_text import reason_of
from tfcluster.checkpoints.completeness import Checkpoint, Entry, Kind, find
from tfcluster.checkpoints.copying import CancelledError, SourceChangedError, partial_bytes
from tfcluster.checkpoints.restore import Follower, Follows
from tfcluster.checkpoints.sources import Source, source_of
from tfcluster.checkpoints.store import Gathered, NotWholeError, Store

LEAST_GAP_S = 0.5
"""Two looks closer than this prove nothing about a file that is being written."""
_OF_A_MOUNT = "lost+found/"
"""Of the file system's own, and root's: no task writes there."""
RETRY_S = 30.0
"""How long a checkpoint that could not be stored (disk full) is left alone."""


@dataclass(frozen=True, slots=True)
class ReportedSave:
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
        self._told: dict[str, ReportedSave] = {}
        self._failed: dict[Checkpoint, float] = {}
        self._notes: list[str] = []
        self._said: set[str] = set()
        self._backups: set[str] = set()
        self._cancelled = threading.Event()
        self._done_bytes = self._all_bytes = 0
        self.beats = 0
        """Grows while a look moves, with each piece of a file."""
        self._looking = threading.Lock()
        self._telling = threading.Lock()

    def look(self) -> list[Gathered]:
        """Gather what is complete and was unchanged since the last look; oldest first. What was
        gathered before its step was told is given again, with that step.

        Raises OSError and CancelledError where the directory itself cannot be looked into."""
        with self._looking:
            told = self._copy_of_told()
            now, seen = self._clock(), self._source.scan(stopped=self._is_cancelled)
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
            self._said.clear()  # what is said now is what lacks in the end
            told = self._copy_of_told()
            seen = self._source.scan(stopped=self._is_cancelled)
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
            with self._telling:  # a look copies it
                self._told[relative.as_posix()] = ReportedSave(step, at_ns)
                if len(self._told) > budgets.TOLD_CHECKPOINTS:
                    del self._told[next(iter(self._told))]

    def _is_cancelled(self) -> bool:
        self.beats += 1
        return self._cancelled.is_set()

    def _copy_of_told(self) -> dict[str, ReportedSave]:
        with self._telling:
            return dict(self._told)

    def cancel(self) -> None:
        """Make the look that is under way, and later ones, return soon with nothing half-copied.

        Only `final_look` works again afterwards; it can itself be cancelled.
        """
        self._cancelled.set()

    def progress(self) -> tuple[int, int]:
        """How many bytes the look that is under way has copied, and of how many; for any thread."""
        done, of = self._done_bytes, self._all_bytes
        return min(of, done + partial_bytes(self.store.root)), of

    def take_notes(self) -> list[str]:
        """What the user should know, each said once, and again by a final look."""
        notes, self._notes = self._notes, []
        return notes

    def _gather(
        self, seen: Sequence[Entry], found: Sequence[Checkpoint], told: Mapping[str, ReportedSave]
    ) -> list[Gathered]:
        """`told`: what was told before the look at what was `seen`, so of nothing newer."""
        self._note_unreadable(seen)
        self._drop_finished_backups(seen)
        gathered, worth = self._correct_steps(seen, told), self._worth_copying(found)
        self._done_bytes, self._all_bytes = 0, sum(checkpoint.bytes for checkpoint in worth)
        for checkpoint in worth:
            if self._cancelled.is_set():
                break
            if one := self._try(checkpoint, told.get(checkpoint.path)):
                gathered.append(one)
            self._done_bytes += checkpoint.bytes
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
        new.sort(key=lambda one: one.saved_ns, reverse=True)
        return self._with_room(new)

    def _with_room(self, new: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Without those of further names once the store is full: a job that gives each save a
        name of its own would fill the disk."""
        held = {one.checkpoint.series for one in self.store.held}
        room = max(0, budgets.CHECKPOINTS - len(self.store.held))
        further = [one for one in new if one.series not in held]
        if len(further) > room:
            self._note(
                f"{self._source.folder} holds checkpoints of more than {budgets.CHECKPOINTS} names:"
                " of further names none is gathered"
            )
        left_out = {*further[room:]}
        return [one for one in new if one not in left_out]

    def _correct_steps(
        self, seen: Sequence[Entry], told: Mapping[str, ReportedSave]
    ) -> list[Gathered]:
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

    def _try(self, checkpoint: Checkpoint, told: ReportedSave | None) -> Gathered | None:
        step = checkpoint.step if told is None else told.step
        try:
            return self.store.add(checkpoint, self._source, step=step, stopped=self._is_cancelled)
        except NotWholeError:
            self._failed[checkpoint] = float("inf")
        except SourceChangedError:
            pass  # rotated or rewritten meanwhile: the next newest, or the next look
        except CancelledError:
            pass
        except OSError as error:
            self._failed[checkpoint] = self._clock() + RETRY_S
            self._note(f"{checkpoint.path} was not gathered: {reason_of(error)}")
        return None

    def _note_unreadable(self, seen: Sequence[Entry]) -> None:
        for entry in seen:
            if not entry.is_unreadable or entry.path == _OF_A_MOUNT:
                continue
            folder = self._source.folder / entry.path
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
            follower.follow(self.store.held, stopped=self._is_cancelled)
        except (SourceChangedError, CancelledError):
            pass
        except OSError as error:
            self._note(f"{follower.directory} does not follow: {reason_of(error)}")

    def _note(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._notes.append(text)


def _folder_of(checkpoint: Checkpoint) -> str:
    return dirname(checkpoint.files[0].path)


def _folders_with_files(seen: Sequence[Entry]) -> set[str]:
    return {dirname(entry.path) for entry in seen if not entry.path.endswith("/")}
