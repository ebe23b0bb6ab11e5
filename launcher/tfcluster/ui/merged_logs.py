"""Merges a run's task logs into one stream: ``worker:0 │ line``, whole lines, in order per task.

A pipe or a file gets what the tasks wrote, byte for byte, apart from the prefix and from progress
bars (only their last state). A terminal gets sanitized lines without the lines that TensorFlow's
native code writes at each start (`native_lines`), and a very long line is cut with a note; the log
files keep everything.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import TaskSnapshot
from tfcluster.rundir.task_logs import (
    CHUNK,
    AttemptLogs,
    RunLogs,
    TaskLog,
    file_size,
    last_lines,
    latest_states,
    rank,
    start_of_line,
    tail_offset,
)
from tfcluster.ui.lines import (
    Collapser,
    cut_line,
    cut_long_lines,
    format_stamp,
    json_head,
    json_text,
    prefix_lines,
    sanitize,
    sanitize_text,
    select_lines,
)
from tfcluster.ui.native_lines import NativeFilter
from tfcluster.ui.terminal import TASK_COLOURS, paint

_LAST_BYTES = 8192
"""The end of a log in which its last line is looked for."""
_MOST_PASSED = 64
"""Blocks of a task without a line to show that one round reads: other tasks have their turn."""


@dataclass(frozen=True, slots=True)
class LogFilter:
    """A selection of lines; by default all of them."""

    tasks: Collection[str] = ()
    """Labels as shown (``worker:0``, ``prepare``); empty: all tasks."""
    grep: re.Pattern[bytes] | None = None
    first_attempt: int = 0
    """The prepare step counts as attempt 0."""
    first_of: Mapping[str, int] = field(default_factory=dict)
    """Label → first attempt of that task, where it is later than `first_attempt`."""
    last_attempt: int | None = None
    since: float | None = None
    """Unix time before which lines are not shown."""
    tail: int | None = None
    """Number of last lines (that match `grep`) to show of files that exist at the start."""

    failed: Collection[str] = ()
    """Labels of tasks that have failed: all their lines are shown."""

    def includes(self, label: str, attempt: int) -> bool:
        if self.last_attempt is not None and attempt > self.last_attempt:
            return False
        if attempt < max(self.first_attempt, self.first_of.get(label, 0)):
            return False
        return not self.tasks or label in self.tasks


@dataclass(frozen=True, slots=True)
class LineStyle:
    """The look of lines: bare for a pipe, sanitized and possibly coloured for a screen."""

    is_screen: bool = False
    colours: bool = False
    collapse: bool = False
    folds: bool = False
    """Omit the start lines of TensorFlow's native code until their task has failed."""
    times: bool = False
    """Begin each line with its time."""
    as_json: bool = False
    """Write each line as a JSON object: its time, task, attempt and text; for a pipe."""


def task_colour(label: str) -> str:
    """Return the colour of a task: its own wherever it is shown, however many others there are."""
    place, _, index = rank(label)
    return TASK_COLOURS[(index + 4 * (place - rank("worker")[0])) % len(TASK_COLOURS)]


class MergedLogs:
    """The merged stream of one run folder: call `advance` repeatedly, at the view's pace."""

    def __init__(
        self,
        paths: RunPaths,
        log_filter: LogFilter | None = None,
        line_style: LineStyle | None = None,
        watch: Callable[[Path], None] = lambda folder: None,
    ) -> None:
        """Find the logs of a run; `watch` is called with each folder that may get more."""
        self._filter = log_filter or LogFilter()
        self._line_style = line_style or LineStyle()
        self._logs = RunLogs(paths.logs, self._filter.includes, watch)
        self._native: dict[TaskLog, NativeFilter] = {}
        """The logs whose native lines are dropped."""
        self._old_sizes: dict[TaskLog, int] = {}
        """The size up to which nothing is asked for, where a line without newline ends there: it
        is shown if more of it comes."""
        self._prefixes: dict[str, bytes] = {}
        self._collapser = Collapser(self._style_line) if self._line_style.collapse else None
        self.discover(tail=self._filter.tail)

    def discover(self, *, tail: int | None = None) -> None:
        """Find files created since the last call; cheap if there are none."""
        if new_logs := self._logs.discover():
            for log in new_logs:
                self._prepare(log, tail)
            self._set_prefixes()

    def advance(self) -> Iterator[bytes]:
        """Yield one round: at most one styled block of every task, ready to be written.

        A consumer that blocks while writing pauses the round; nothing is lost.
        """
        self.discover()
        for task in list(self._logs.tasks.values()):
            if self._collapser is not None:
                self._collapser.feed(task.label, self._plain_lines(task))
            else:
                yield from self._styled(task)
        if self._collapser is not None:
            yield from self._collapser.take_due()

    def drain(self) -> Iterator[bytes]:
        """Yield all remaining output of tasks that have ended, last lines without newline too."""
        self.discover()
        for log in self._logs.files():
            if log.size() == (old_size := self._old_sizes.get(log)):
                log.move_to(old_size)
        self._logs.mark_all_ended()
        while True:
            found_new = False
            before = self._position()
            for block in self.advance():
                found_new = True
                yield block
            if not found_new and self._position() == before:
                break
        if self._collapser is not None:
            yield from self._collapser.take_all()

    def mark_ended(self, label: str, attempt: int, *, has_failed: bool = False) -> None:
        """Mark a task's log as complete after its exit: its last line needs no newline.

        `has_failed`: no line of it is omitted from now on.
        """
        task = self._logs.tasks.get(label)
        if task is None or task.newest.attempt < attempt:
            self.discover()
        if task := self._logs.tasks.get(label):
            task.mark_ended(attempt)
            if has_failed:
                for log in task.logs:
                    if log.attempt == attempt:
                        self._native.pop(log, None)

    def partials(self) -> dict[str, str]:
        """Return task → latest state of its line that has no newline yet, for a status line."""
        shown = {
            task.label: sanitize_text(partial.decode("utf-8", "replace")).strip()
            for task in self._logs.tasks.values()
            if (partial := task.current.partial())
        }
        return {label: text for label, text in shown.items() if text}

    def behind(self) -> int:
        """Return how many bytes the tasks have written that were not yielded yet."""
        return sum(log.size() - log.offset for log in self._logs.files())

    def omitted(self) -> int:
        """Return how many native lines were omitted from the current attempts' logs."""
        logs = self._logs.files()
        return sum(self._native[log].dropped for log in logs if log in self._native)

    def skip_to_newest(self, keep: int = 4 * CHUNK) -> int:
        """Skip all but about the newest `keep` bytes of every task; return the skipped lines."""
        skipped = 0
        for task in self._logs.tasks.values():
            for log in task.logs:
                if log in self._native:
                    self._native[log].interrupt()
                skipped += log.skip_to_newest(keep if log is task.newest else 0)
        return skipped

    def _prepare(self, log: TaskLog, tail: int | None) -> None:
        # A search finds native lines as well, and `tail` counts the lines that are shown.
        folds = self._line_style.folds and self._filter.grep is None
        if folds and log.label not in self._filter.failed:
            self._native[log] = NativeFilter()
        if begin := max(self._find_start(log), self._find_tail(log, tail)):
            log.move_to(start_of_line(log.path, begin))
            if log.offset < begin:
                self._old_sizes[log] = begin

    def _find_start(self, log: TaskLog) -> int:
        if self._filter.since is None or not log.times.exists:
            return 0
        offset = log.times.find(self._filter.since)
        return log.size() if offset is None else offset

    def _find_tail(self, log: TaskLog, tail: int | None) -> int:
        if tail is None:
            return 0
        if (grep := self._filter.grep) is not None:
            search = grep.search
            return tail_offset(log.path, tail, lambda block: search if search(block) else None)
        if log in self._native:
            return tail_offset(log.path, tail, _native_test)
        return tail_offset(log.path, tail)

    def _set_prefixes(self) -> None:
        labels = self._logs.tasks
        width = max(map(len, labels)) if self._line_style.is_screen else 0
        for label in labels:
            head = f"{label:{width}} │"
            if self._line_style.colours:
                head = paint(head, task_colour(label))
            self._prefixes[label] = f"{head} ".encode()

    def _position(self) -> int:
        return sum(log.position for log in self._logs.files())

    def _styled(self, task: AttemptLogs) -> Iterator[bytes]:
        """Yield the next block with a line that is shown; blocks without one are passed over."""
        for _ in range(_MOST_PASSED):
            log, before = task.current, task.current.position
            has_lines = False
            for block in self._next_block(task):
                has_lines = True
                yield block
            if has_lines or (task.current is log and log.position == before):
                return

    def _next_block(self, task: AttemptLogs) -> Iterator[bytes]:
        pieces = task.read()
        first = next(pieces, None)
        if first is None:
            return
        if not first.endswith(b"\n"):
            yield from self._long_line(task, first, pieces)
        elif self._line_style.times or self._line_style.as_json:
            yield from self._stamped(task, first)
        elif block := self._select(latest_states(first), task.current):
            yield self._style(block, self._prefixes[task.label])

    def _stamped(self, task: AttemptLogs, raw: bytes) -> Iterator[bytes]:
        """Yield the lines of the block `raw` in groups of the same time."""
        log, at, group, shown = task.current, task.current.start, list[bytes](), b""
        log.times.refresh()
        lines = latest_states(raw)[:-1].split(b"\n")
        for length, line in zip(map(len, raw[:-1].split(b"\n")), lines, strict=True):
            at += length + 1
            if selected := self._select(line + b"\n", log):
                prefix = self._prefix(task, at - 1)
                if group and prefix != shown:
                    yield self._style(b"".join(group), shown)
                    group = []
                group.append(selected)
                shown = prefix
        if group:
            yield self._style(b"".join(group), shown)

    def _prefix(self, task: AttemptLogs, offset: int) -> bytes:
        """Return what goes before the line whose last byte is at `offset`."""
        style = self._line_style
        if not style.times and not style.as_json:
            return self._prefixes[task.label]
        moment = task.current.times.at(offset)
        if style.as_json:
            return json_head(moment, task.label, task.current.attempt)
        stamp = format_stamp(moment)
        stamp = paint(stamp, "dim") if style.colours else stamp
        return f"{stamp} ".encode() + self._prefixes[task.label]

    def _long_line(self, task: AttemptLogs, first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
        log = task.current
        log.times.refresh()
        if log in self._native:
            self._native[log].interrupt()
        prefix = self._prefix(task, log.offset - 1)
        if self._filter.grep is not None and not self._filter.grep.search(first):
            # Only the first chunk of a line longer than a chunk is searched.
            deque(rest, maxlen=0)
        elif self._line_style.is_screen:
            yield self._style(cut_line(first, sum(map(len, rest))), prefix)
        elif self._line_style.as_json:
            yield from _long_json(prefix, chain([first], rest))
        else:
            yield prefix + first
            yield from rest

    def _select(self, block: bytes, log: TaskLog) -> bytes:
        if (native := self._native.get(log)) is not None:
            block = native(block)
        if block and self._filter.grep is not None:
            block = select_lines(block, self._filter.grep)
        return cut_long_lines(block) if self._line_style.is_screen else block

    def _style(self, block: bytes, prefix: bytes) -> bytes:
        if self._line_style.as_json:
            lines = block.decode("utf-8", "replace")[:-1].split("\n")
            return b"".join(prefix + json_text(line).encode() + b'"}\n' for line in lines)
        if self._line_style.is_screen:
            block = sanitize(block, colours=self._line_style.colours)
        return prefix_lines(block, prefix)

    def _style_line(self, label: str, line: bytes, times: int) -> bytes:
        suffix = f" (×{times})".encode() if times > 1 else b""
        return self._style(line + suffix + b"\n", self._prefixes[label])

    def _plain_lines(self, task: AttemptLogs) -> list[bytes]:
        pieces = task.read()
        first = next(pieces, b"")
        if first and not first.endswith(b"\n"):
            first = cut_line(first, sum(map(len, pieces)))
        block = self._select(latest_states(first), task.current) if first else b""
        return block[:-1].split(b"\n") if block else []


class LastLines:
    """The last line of each task's log, without native lines; read again once the log has grown."""

    def __init__(self, paths: RunPaths) -> None:
        self._root = paths.root
        self._known: dict[str, tuple[int, str]] = {}

    def of(self, task: TaskSnapshot) -> str:
        """Return the last line that a task has written; empty if there is none."""
        if task.log is None:
            return ""
        path, known = self._root / task.log, self._known.get(task.log)
        size = file_size(path)
        if known is None or known[0] != size:
            native = NativeFilter()
            lines = last_lines(path, within=_LAST_BYTES)
            shown = [line for line in lines if line.strip() and native(line + b"\n")]
            last = sanitize(shown[-1] + b"\n", colours=False).decode() if shown else ""
            known = self._known[task.log] = size, last.strip()
        return known[1]


def _native_test(block: bytes) -> Callable[[bytes], object]:
    native = NativeFilter()
    return lambda line: native(line + b"\n")


def _long_json(head: bytes, pieces: Iterable[bytes]) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    yield head
    for piece in pieces:
        text = decoder.decode(piece, final=piece.endswith(b"\n"))
        yield json_text(text.removesuffix("\n")).encode()
    yield b'"}\n'
