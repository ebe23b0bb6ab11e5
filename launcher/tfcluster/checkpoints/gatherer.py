"""The gathering of the chief's checkpoints during a run: one `Gatherer` per run.

Its methods block, as they copy gigabytes: call `gather` in a thread, about every two seconds and
after a task reported a save, and `cancel` from any thread to make a running call return soon.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from posixpath import dirname

from tfcluster.agent import budgets, foreign_json
from tfcluster.agent.catalogue import Evaluated, Saved
from tfcluster.agent.error_text import reason_of
from tfcluster.checkpoints.copying import (
    CancelledError,
    Source,
    SourceChangedError,
    partial_bytes,
    source_of,
)
from tfcluster.checkpoints.recognition import Checkpoint, CheckpointKind, Entry, find, oldest_first
from tfcluster.checkpoints.store import Damaged, Gathered, IncompleteError, Score, Store

_MOST_SAVES_BYTES = 4 << 20
"""The size from which the file of reported saves is written anew."""
LEAST_GAP_S = 0.5
"""Seconds between two listings that can prove that a file is not being written."""
_LOST_AND_FOUND = "lost+found/"
"""A folder of the file system that belongs to root; no task writes there."""
RETRY_S = 30.0
"""Seconds after which a checkpoint that could not be stored (disk full) is tried again."""


@dataclass(frozen=True, slots=True)
class ReportedSave:
    """The last save that a task reported for a path."""

    step: int | None
    at_ns: int | None
    """The time, by the clock of the task's files; None if unknown."""
    load: str
    """See `Gathered.load`."""

    def is_of(self, checkpoint: Checkpoint) -> bool:
        """Return whether it is about `checkpoint`, not about an older one at the same path."""
        return self.at_ns is None or checkpoint.saved_ns <= self.at_ns


class Gatherer:
    """The watcher of one directory, which fills a store."""

    def __init__(
        self,
        directory: Path | Source,
        store: Store,
        *,
        saves: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; `saves`: the file with the reported saves, for a later gatherer."""
        self.store = store
        self._source = source_of(directory)
        self._clock = clock
        self._before: tuple[float, tuple[Entry, ...]] | None = None
        self._saves = saves
        self._reported: dict[str, ReportedSave] = _read_saves(saves)
        self._scores: dict[int, Score] = {}
        """Step → the score that an evaluator has reported and that is not in the store yet."""
        self._failed: dict[Checkpoint, float] = {}
        self._notes: list[str] = []
        self._noted: set[str] = set()
        self._backups: set[str] = set()
        self._left = list[Checkpoint]()
        """The checkpoints that the last call found and could not copy."""
        self._is_complete = False
        """True if `gather_last` has left nothing, and nothing was saved since."""
        self._cancelled = threading.Event()
        self._done_bytes = self._all_bytes = 0
        self.beats = 0
        """A counter that grows with each piece of a file: a sign of life."""
        self._gathering = threading.Lock()
        self._reporting = threading.Lock()

    def gather(self) -> list[Gathered]:
        """Gather the checkpoints that are complete and unchanged since the last call.

        Return them, oldest first; one that was gathered before its step was reported is returned
        again, with that step. Raises OSError and CancelledError if the directory cannot be listed.
        """
        with self._gathering:
            reported = self._copy_of_reported()
            now, listing = self._clock(), self._source.scan(stopped=self._is_cancelled)
            before, self._before = self._before, self._before or (now, listing)
            if before is None or now - before[0] < LEAST_GAP_S:
                return []
            self._before = (now, listing)
            self._drop_finished_backups(listing)
            return self._copy_new(listing, find(listing, before[1]), reported, self._source)

    def gather_last(
        self, salvaged: Path | None = None, *, may_be_new: bool = False
    ) -> list[Gathered]:
        """Gather after the writer has exited: one listing is enough, and failures are noted.

        `salvaged`: a folder of this machine with a copy of the directory, which is lost.
        `may_be_new`: the directory may be another one than before, of a new node.
        """
        source = self._source if salvaged is None else source_of(salvaged)
        self._cancelled.clear()
        with self._gathering:  # the wait for it may be cancelled, too
            self._failed.clear()
            self._noted.clear()  # notes from now on are about what is missing in the end
            reported = self._copy_of_reported()
            listing = source.scan(stopped=self._is_cancelled)
            if not (may_be_new or salvaged):  # what a new directory lacks nobody has deleted
                self._drop_finished_backups(listing)
            gathered = self._copy_new(listing, find(listing, None), reported, source)
            for checkpoint, until in self._failed.items():
                if until == float("inf"):
                    self._note(f"{checkpoint.path} was not gathered: it is incomplete")
            self._before, self._is_complete = None, not self._left
            return gathered

    def misses_newest(self) -> bool:
        """Return whether the store may lack the newest checkpoint after `gather_last`.

        If that could not list the directory, what the tasks reported decides.
        """
        if self._is_complete:
            return False
        if self._left:
            return any(map(self._is_newest, self._left))
        saved = [report.step for report in self._reported.values()]
        held = [gathered.step for gathered in self.store.held if gathered.step is not None]
        if None in saved or not held:
            return bool(saved)
        return any(step > max(held) for step in saved if step is not None)

    def _is_newest(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint at the source is newer than all of its series here."""
        step, _ = _reported_of(checkpoint, self._reported)
        ages = [held.age for held in self.store.held if held.checkpoint.series == checkpoint.series]
        age = self.store.ages_of({checkpoint: step})[checkpoint]
        return oldest_first([*ages, age], lambda each: each)[-1] is age

    def set_aside_damaged(self) -> list[Damaged]:
        """Set aside damaged checkpoints of the store (`Store.set_aside_damaged`)."""
        with self._gathering:
            return self.store.set_aside_damaged(stopped=self._is_cancelled)

    def saved(self, report: Saved) -> None:
        """Remember what a task reported of a save; its time is by the clock of the task's files."""
        path = Path(report.path)
        if path.is_absolute() and path.is_relative_to(self._source.folder):
            path = path.relative_to(self._source.folder)
        name = path.as_posix()
        with self._reporting:  # `gather` copies it in another thread
            # A script that reports its save reports the one that the hooks have seen.
            before = self._reported.get(name, ReportedSave(None, None, ""))
            step = before.step if report.step is None else report.step
            self._reported[name] = ReportedSave(step, report.at_ns, report.load or before.load)
            self._is_complete = False
            self._note_save(name)
            if len(self._reported) > budgets.REPORTED_CHECKPOINTS:
                del self._reported[next(iter(self._reported))]

    def evaluated(self, report: Evaluated) -> None:
        """Remember an evaluator's score of a checkpoint; the next gathering notes it."""
        if report.step is not None and report.metric is not None and report.value is not None:
            with self._reporting:
                self._scores[report.step] = Score(
                    report.metric, report.value, report.lower_is_better
                )

    def _rate(self) -> None:
        """Note the reported scores before the store drops what it does not keep."""
        with self._reporting:
            scores, self._scores = self._scores, {}
        for held in self.store.held:
            if held.step in scores and held.kind is not CheckpointKind.BACKUP:
                with contextlib.suppress(OSError):  # a full disk
                    self.store.rate(held, scores[held.step])

    def _note_save(self, name: str) -> None:
        if self._saves is None:
            return
        with contextlib.suppress(OSError):  # a full disk: only a later gatherer misses its step
            fits = self._saves.exists() and self._saves.stat().st_size < _MOST_SAVES_BYTES
            names = [name] if fits else [*self._reported]
            rows = ({"path": each, **asdict(self._reported[each])} for each in names)
            with self._saves.open("a" if fits else "w", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)

    def cancel(self) -> None:
        """Make the call in progress, and later ones, return soon without partial copies.

        Only `gather_last` works again afterwards; it can itself be cancelled.
        """
        self._cancelled.set()

    def progress(self) -> tuple[int, int]:
        """Return how many bytes the call in progress has copied, and of how many; thread-safe."""
        done, total = self._done_bytes, self._all_bytes
        return min(total, done + partial_bytes(self.store.root)), total

    def take_notes(self) -> list[str]:
        """Return and clear the notes for the user; each is given once, and again at the end."""
        notes, self._notes = self._notes, []
        return notes

    def _is_cancelled(self) -> bool:
        self.beats += 1
        return self._cancelled.is_set()

    def _copy_of_reported(self) -> dict[str, ReportedSave]:
        with self._reporting:
            return dict(self._reported)

    def _copy_new(
        self,
        listing: Sequence[Entry],
        complete: Sequence[Checkpoint],
        reported: Mapping[str, ReportedSave],
        source: Source,
    ) -> list[Gathered]:
        """Copy the checkpoints worth keeping and return the gathered or corrected ones.

        `reported`: the reports made before `listing`, so that none is about a newer save.
        """
        self._note_unreadable(listing)
        self._rate()
        gathered = self._correct_steps(listing, reported)
        worth = self._worth_copying(complete, reported)
        self._done_bytes, self._all_bytes = 0, sum(checkpoint.bytes for checkpoint in worth)
        self._left = []
        for checkpoint in worth:
            if self._cancelled.is_set():
                self._left.append(checkpoint)
            elif copied := self._copy(checkpoint, reported, source):
                gathered.append(copied)
            self._done_bytes += checkpoint.bytes
        self._remember_backups(listing)
        return [held for held in self.store.held if held in gathered]

    def _worth_copying(
        self, complete: Sequence[Checkpoint], reported: Mapping[str, ReportedSave]
    ) -> list[Checkpoint]:
        """Return new checkpoints that the store would keep, newest first: jobs delete old ones."""
        ages = {held.checkpoint: held.age for held in self.store.held}
        new = {c: _reported_of(c, reported)[0] for c in complete if c not in ages}
        ages |= self.store.ages_of(new)
        ordered = oldest_first(ages, ages.__getitem__)
        kept = new.keys() & self.store.worth_keeping(ordered, ages.__getitem__)
        worth = {c for c in kept if self._failed.get(c, 0.0) <= self._clock()}
        return self._limit_names([c for c in reversed(ordered) if c in worth])

    def _limit_names(self, new: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Drop checkpoints with new names once the store is full.

        Otherwise a job that gives each save a name of its own would fill the disk.
        """
        held = {gathered.checkpoint.series for gathered in self.store.held}
        room = max(0, budgets.CHECKPOINTS - len(self.store.held))
        new_names = [checkpoint for checkpoint in new if checkpoint.series not in held]
        if len(new_names) > room:
            self._note(
                f"{self._source.folder} holds checkpoints of more than {budgets.CHECKPOINTS} names:"
                " those with other names are not gathered"
            )
        left_out = {*new_names[room:]}
        return [checkpoint for checkpoint in new if checkpoint not in left_out]

    def _correct_steps(
        self, listing: Sequence[Entry], reported: Mapping[str, ReportedSave]
    ) -> list[Gathered]:
        """Set the steps that were reported after their checkpoints had been gathered."""
        present, corrected = set(listing), []
        for held in self.store.held:
            report = reported.get(held.checkpoint.path)
            if report is None or not report.is_of(held.checkpoint):
                continue
            step = held.step if report.step is None else report.step
            if (step, report.load) == (held.step, held.load):
                continue
            if present.issuperset(held.checkpoint.files):
                with contextlib.suppress(OSError):  # a full disk: the next call tries again
                    corrected.append(self.store.correct(held, step=step, load=report.load))
        return corrected

    def _copy(
        self, checkpoint: Checkpoint, reported: Mapping[str, ReportedSave], source: Source
    ) -> Gathered | None:
        step, load = _reported_of(checkpoint, reported)
        try:
            return self.store.add(
                checkpoint, source, step=step, load=load, stopped=self._is_cancelled
            )
        except IncompleteError:
            self._failed[checkpoint] = float("inf")
        except SourceChangedError:
            pass  # rotated or rewritten meanwhile: take the next newest, or wait for the next call
        except CancelledError:
            self._left.append(checkpoint)
        except OSError as error:
            self._left.append(checkpoint)
            self._failed[checkpoint] = self._clock() + RETRY_S
            self._note(f"{checkpoint.path} was not gathered: {reason_of(error)}")
        return None

    def _note_unreadable(self, listing: Sequence[Entry]) -> None:
        for entry in listing:
            if not entry.is_unreadable or entry.path == _LOST_AND_FOUND:
                continue
            folder = self._source.folder / entry.path
            self._note(f"{folder} cannot be read: no checkpoint in it is gathered")

    def _drop_finished_backups(self, listing: Sequence[Entry]) -> None:
        """Forget backups that the job deleted: `fit` does so when it ends, and a backup put back
        would make the next `fit` skip its epochs."""
        present = _folders_with_files(listing)
        for held in self.store.held:
            folder = _folder_of(held.checkpoint)
            if held.kind is CheckpointKind.BACKUP and folder in self._backups - present:
                self._backups.discard(folder)
                self.store.forget(held)

    def _remember_backups(self, listing: Sequence[Entry]) -> None:
        held = {
            _folder_of(g.checkpoint) for g in self.store.held if g.kind is CheckpointKind.BACKUP
        }
        self._backups |= held & _folders_with_files(listing)

    def _note(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._notes.append(text)


def _read_saves(path: Path | None) -> dict[str, ReportedSave]:
    """Return path → the last save of each path that an earlier gatherer has noted."""
    saves: dict[str, ReportedSave] = {}
    if path is None:
        return saves
    with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            with contextlib.suppress(ValueError, TypeError, KeyError):  # cut by a full disk
                row = foreign_json.parse_json_object(line)
                saved_path = row.pop("path")
                saves[saved_path] = ReportedSave(**row)
    return saves


def _reported_of(
    checkpoint: Checkpoint, reported: Mapping[str, ReportedSave]
) -> tuple[int | None, str]:
    """Return the step of a checkpoint, and the Python that loads it, "" if not reported."""
    if (report := reported.get(checkpoint.path)) is None:
        return checkpoint.step, ""
    return checkpoint.step if report.step is None else report.step, report.load


def _folder_of(checkpoint: Checkpoint) -> str:
    return dirname(checkpoint.files[0].path)


def _folders_with_files(listing: Sequence[Entry]) -> set[str]:
    return {dirname(entry.path) for entry in listing if not entry.path.endswith("/")}
