"""Merges a run's task logs into one stream: ``worker:0 │ line``, whole lines, in order per task.

A pipe or a file gets what the tasks wrote, byte for byte, apart from the prefix and from progress
bars (only their last state). A terminal gets sanitized lines, and a very long line is cut with a
note; the log files keep everything.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tfcluster.plan.plan import JOB_NAMES, TaskId
from tfcluster.rundir.paths import RunPaths
from tfcluster.ui.lines import (
    Collapser,
    attribute,
    harmless,
    harmless_text,
    latest_states,
    matching,
)
from tfcluster.ui.tail import CHUNK, LogSource, tail_offset
from tfcluster.ui.terminal import TASK_COLOURS, paint

_ATTEMPT = re.compile(r"attempt-(\d+)")


def log_folders(logs: Path) -> list[tuple[int, Path]]:
    """Attempt number and folder, prepare (0) first."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for folder in logs.iterdir():
            if match := _ATTEMPT.fullmatch(folder.name):
                found.append((int(match[1]), folder))
            elif folder.name == "prepare":
                found.append((0, folder))
    return sorted(found)


def newest_attempts(logs: Path) -> dict[str, int]:
    """Label → the newest attempt that it has a log of; tasks restart together or alone."""
    newest: dict[str, int] = {}
    for attempt, folder in log_folders(logs):
        newest |= {label_of(path): attempt for path in folder.glob("*.log")}
    return newest


def changed_ns(folder: Path) -> int:
    """Time stamp of a folder, which changes when a file comes."""
    try:
        return folder.stat().st_mtime_ns
    except FileNotFoundError:
        # `tfcluster rm` while a view looks on.
        return 0


def prepare_label(node: str) -> str:
    """How the prepare step of a node is called in the merged stream."""
    return "prepare" if node == "local" else f"prepare@{node}"


def label_of(path: Path) -> str:
    """The task whose log this is, as lines name it."""
    if path.parent.name == "prepare":
        return prepare_label(path.stem)
    try:
        return str(TaskId.parse(path.stem))
    except ValueError:
        return path.stem


def rank(label: str) -> tuple[int, str, int]:
    """Sorts labels: prepare, chief, workers by number, ps, evaluator."""
    job, _, index = label.partition(":")
    place = JOB_NAMES.index(job) + 1 if job in JOB_NAMES else 0
    return place, job, int(index) if index.isdecimal() else 0


SHOWN_OF_A_LINE = 8 * 1024
"""Bytes of one line that a terminal gets."""

_LOOK_FOR_FILES_S = 0.5
_TIME_STAMPS_SETTLE_NS = 1_000_000_000
"""A folder may change twice within one tick of its time stamp."""


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Which lines a view wants; everything by default."""

    tasks: Collection[str] = ()
    """Labels as shown (``worker:0``, ``prepare``); empty: all."""
    grep: re.Pattern[bytes] | None = None
    first_attempt: int = 0
    """The prepare step counts as attempt 0."""
    first_of: Mapping[str, int] = field(default_factory=dict)
    """Label → the same for one task, where that is later."""
    last_attempt: int | None = None
    tail: int | None = None
    """Of files that exist at the beginning only the last lines (that match)."""

    def wants(self, label: str, attempt: int) -> bool:
        if self.last_attempt is not None and attempt > self.last_attempt:
            return False
        if attempt < max(self.first_attempt, self.first_of.get(label, 0)):
            return False
        return not self.tasks or label in self.tasks


@dataclass(frozen=True, slots=True)
class Dress:
    """How lines look: bare on a pipe; harmless, and maybe coloured, on a screen."""

    is_screen: bool = False
    colours: bool = False
    collapse: bool = False


class _Lane:
    """The logs of one task, attempt after attempt."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.sources: deque[tuple[int, LogSource]] = deque()
        self.prefix = b""

    @property
    def source(self) -> LogSource:
        return self.sources[0][1]

    def end(self, attempt: int) -> None:
        for number, source in self.sources:
            if number <= attempt:
                source.has_ended = True

    def read(self) -> Iterator[bytes]:
        while True:
            before = self.source.position
            yield from self.source.read()
            if self.source.position != before or len(self.sources) == 1:
                return
            # A newer attempt of this task has begun, so this file is complete; its last line too.
            if not self.source.has_ended:
                self.source.has_ended = True
                continue
            self.sources.popleft()[1].close()


class MergedLogs:
    """The merged stream of one run folder; `advance` again and again, at the pace of the view."""

    def __init__(
        self, paths: RunPaths, wanted: LogFilter | None = None, dress: Dress | None = None
    ) -> None:
        self._paths = paths
        self._wanted = wanted or LogFilter()
        self._dress = dress or Dress()
        self._lanes: dict[str, _Lane] = {}
        self._known: set[tuple[Path, str]] = set()
        self._seen_folders: dict[Path, int] = {}
        self._collapser = Collapser(self._clothe_line) if self._dress.collapse else None
        self.discover(tail=self._wanted.tail)

    def discover(self, *, tail: int | None = None) -> None:
        """Look for files that came since; cheap when nothing did."""
        self._discovered_at = time.monotonic()
        before = len(self._known)
        for attempt, folder in log_folders(self._paths.logs):
            changed = changed_ns(folder)
            if self._seen_folders.get(folder) == changed:
                continue
            if time.time_ns() - changed > _TIME_STAMPS_SETTLE_NS:
                self._seen_folders[folder] = changed
            for path in self._new_in(folder):
                self._add(path, attempt, tail)
        if self._lanes and len(self._known) > before:
            self._lanes = dict(sorted(self._lanes.items(), key=lambda pair: rank(pair[0])))
            self._set_prefixes()

    def _new_in(self, folder: Path) -> Iterator[Path]:
        with contextlib.suppress(FileNotFoundError):  # `tfcluster rm` while a view looks on
            for name in os.listdir(folder):  # of a thousand, a tenth of what `Path.glob` takes
                if name.endswith(".log") and (folder, name) not in self._known:
                    self._known.add((folder, name))
                    yield folder / name

    def advance(self) -> Iterator[bytes]:
        """One round: of every task at most one block, dressed, ready to be written.

        A consumer that blocks while writing stops the round where it is; nothing is lost.
        """
        if time.monotonic() - self._discovered_at > _LOOK_FOR_FILES_S:
            self.discover()
        for lane in list(self._lanes.values()):
            if self._collapser is not None:
                self._collapser.feed(lane.label, self._plain_lines(lane))
            else:
                yield from self._dressed(lane)
        if self._collapser is not None:
            yield from self._collapser.due()

    def drain(self) -> Iterator[bytes]:
        """Everything that is left, once nobody writes any more; last lines without newline too."""
        self.end_all()
        while True:
            moved = False
            before = self._position()
            for block in self.advance():
                moved = True
                yield block
            if not moved and self._position() == before:
                break
        if self._collapser is not None:
            yield from self._collapser.rest()

    def end_task(self, label: str, attempt: int) -> None:
        """This task has exited and its log is complete: its last line is whole as it is."""
        lane = self._lanes.get(label)
        if lane is None or lane.sources[-1][0] < attempt:
            self.discover()
        if lane := self._lanes.get(label):
            lane.end(attempt)

    def end_all(self) -> None:
        self.discover()
        for lane in self._lanes.values():
            lane.end(lane.sources[-1][0])

    def partials(self) -> dict[str, str]:
        """Task → latest state of its line that has no newline yet, for a status line."""
        shown = {
            lane.label: harmless_text(lane.source.partial().decode("utf-8", "replace")).strip()
            for lane in self._lanes.values()
        }
        return {label: text for label, text in shown.items() if text}

    def behind(self) -> int:
        """Bytes written by the tasks and not yet given."""
        return sum(s.size() - s.offset for lane in self._lanes.values() for _, s in lane.sources)

    def skip_to_newest(self, keep: int = 4 * CHUNK) -> int:
        """Leave out all but about the newest `keep` bytes of every task; returns lines left out."""
        skipped = 0
        for lane in self._lanes.values():
            for _, source in list(lane.sources)[:-1]:
                skipped += source.skip_to_newest(0)
            skipped += lane.sources[-1][1].skip_to_newest(keep)
        return skipped

    def close(self) -> None:
        for lane in self._lanes.values():
            for _, source in lane.sources:
                source.close()

    def _add(self, path: Path, attempt: int, tail: int | None) -> None:
        label = label_of(path)
        if not self._wanted.wants(label, attempt):
            return
        offset = 0 if tail is None else tail_offset(path, tail, self._wanted.grep)
        lane = self._lanes.setdefault(label, _Lane(label))
        lane.sources.append((attempt, LogSource(path, offset=offset)))
        lane.sources = deque(sorted(lane.sources, key=lambda pair: pair[0]))

    def _set_prefixes(self) -> None:
        width = max(map(len, self._lanes)) if self._dress.is_screen else 0
        for number, lane in enumerate(self._lanes.values()):
            label = f"{lane.label:{width}} │"
            if self._dress.colours:
                label = paint(label, TASK_COLOURS[number % len(TASK_COLOURS)])
            lane.prefix = f"{label} ".encode()

    def _position(self) -> int:
        return sum(source.position for lane in self._lanes.values() for _, source in lane.sources)

    def _dressed(self, lane: _Lane) -> Iterator[bytes]:
        pieces = lane.read()
        first = next(pieces, None)
        if first is None:
            return
        if first.endswith(b"\n"):
            if block := self._select(latest_states(first)):
                yield self._clothe(block, lane.prefix)
            return
        yield from self._long_line(lane, first, pieces)

    def _long_line(self, lane: _Lane, first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
        if self._wanted.grep is not None and not self._wanted.grep.search(first):
            # Of a line longer than a chunk only the first chunk is searched.
            deque(rest, maxlen=0)
            return
        if not self._dress.is_screen:
            yield lane.prefix + first
            yield from rest
            return
        length = len(first) + sum(map(len, rest)) - 1
        yield self._clothe(self._cut(first, length) + b"\n", lane.prefix)

    def _cut(self, line: bytes, length: int) -> bytes:
        return line[:SHOWN_OF_A_LINE] + f" … (a line of {length:,} bytes; the log has it)".encode()

    def _select(self, block: bytes) -> bytes:
        return block if self._wanted.grep is None else matching(block, self._wanted.grep)

    def _clothe(self, block: bytes, prefix: bytes) -> bytes:
        if self._dress.is_screen:
            block = harmless(block, colours=self._dress.colours)
        return attribute(block, prefix)

    def _clothe_line(self, label: str, line: bytes, times: int) -> bytes:
        suffix = f" (×{times})".encode() if times > 1 else b""
        return self._clothe(line + suffix + b"\n", self._lanes[label].prefix)

    def _plain_lines(self, lane: _Lane) -> list[bytes]:
        pieces = lane.read()
        first = next(pieces, b"")
        if first and not first.endswith(b"\n"):
            length = len(first) + sum(map(len, pieces)) - 1
            first = self._cut(first, length) + b"\n"
        block = self._select(latest_states(first)) if first else b""
        return block[:-1].split(b"\n") if block else []
