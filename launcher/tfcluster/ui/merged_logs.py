"""Merges a run's task logs into one stream: ``worker:0 │ line``, whole lines, in order per task.

What is there already comes in the order of its times (`catch_up`), what follows as it is found
(`advance`). The lines that TensorFlow's native code writes at each start (`native_lines`) are left
out. All others reach a pipe or a file byte for byte, apart from the prefix and from progress bars
(plain text, only their last state). A terminal gets sanitized lines, and a very long line is cut
with a note; the log files keep everything.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import merge
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
    latest_state,
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
from tfcluster.ui.native_lines import NativeFilter, split_native
from tfcluster.ui.terminal import TASK_COLOURS, paint

_LAST_BYTES = 8192
"""The end of a log in which its last line is looked for."""
_MOST_PASSED = 64
"""Blocks of a task without a line to show that one round reads: other tasks have their turn."""
_MOST_READ = 16 * 1024 * 1024
_LEAST_BLOCK = 4 * 1024
"""Bytes of all tasks, and at least of each, that are in memory while they are merged by time."""
_LEAST_WRITTEN = 64 * 1024


@dataclass(frozen=True, slots=True)
class LogFilter:
    """A selection of lines, and their order; by default all of them, by their times."""

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
    by_task: bool = False
    """Show the lines that are there task by task, instead of by their times."""

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

    @property
    def needs_times(self) -> bool:
        return self.times or self.as_json


def task_colour(label: str) -> str:
    """Return the colour of a task: its own wherever it is shown, however many others there are."""
    place, _, index = rank(label)
    return TASK_COLOURS[(index + 7 * (place - rank("worker")[0])) % len(TASK_COLOURS)]


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
            for group in self._next_groups(task):
                yield from self._give(group)
        if self._collapser is not None:
            yield from self._collapser.take_due()

    def catch_up(self) -> Iterator[bytes]:
        """Yield all output until now, ready to be written: by its times, or task by task.

        Where times are equal or not known, the tasks come in the order of `rank`.
        """
        self.discover()
        block_size = max(_LEAST_BLOCK, min(CHUNK, _MOST_READ // max(len(self._logs.tasks), 1)))
        streams = [self._groups_until_now(task, block_size) for task in self._logs.tasks.values()]
        by_task = chain.from_iterable(streams)
        groups = by_task if self._filter.by_task else merge(*streams, key=_moment_of)
        yield from _join(block for group in groups for block in self._give(group))

    def drain(self) -> Iterator[bytes]:
        """Yield all remaining output of tasks that have ended, last lines without newline too."""
        self.discover()
        for log in self._logs.files():
            if log.size() == (old_size := self._old_sizes.get(log)):
                log.move_to(old_size)
        self._logs.mark_all_ended()
        before = -1
        while before != (position := self._position()):
            before = position
            yield from self.catch_up()
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

    def _next_groups(self, task: AttemptLogs) -> Iterator[_Group]:
        """Yield the next block with a line that is shown; blocks without one are passed over."""
        for _ in range(_MOST_PASSED):
            log, before = task.current, task.current.position
            has_lines = False
            for group in self._read(task, CHUNK, self._line_style.needs_times):
                has_lines = True
                yield group
            if has_lines or (task.current is log and log.position == before):
                return

    def _groups_until_now(self, task: AttemptLogs, block_size: int) -> Iterator[_Group]:
        """Yield all lines of a task; one without a time has that of the line before."""
        needs_times = self._line_style.needs_times or not self._filter.by_task
        newest, size, moment = task.newest, task.newest.size(), 0.0
        while task.current is not newest or newest.offset < size:
            log, before = task.current, task.current.position
            for group in self._read(task, block_size, needs_times):
                moment = group.moment or moment
                yield group if group.moment else replace(group, moment=moment)
            if task.current is log and log.position == before:
                return

    def _read(self, task: AttemptLogs, block_size: int, needs_times: bool) -> Iterator[_Group]:
        """Read the next block of a task, and yield its lines that are shown, by their times."""
        pieces = task.read(block_size)
        first, log = next(pieces, None), task.current
        if first is None:
            return
        if needs_times:
            log.times.refresh()
        start = log.start
        if len(first) < CHUNK and not first.endswith(b"\n"):  # the last state of a progress bar
            first, start = b"\r" + first + b"\n", log.offset - len(first) - 2
        if not first.endswith(b"\n"):
            moment = log.times.at(log.offset - 1) if needs_times else None
            yield from self._long_line(task, moment, first, pieces)
            return
        plain = not self._line_style.is_screen
        for moment, raw in log.times.groups(first, start) if needs_times else [(None, first)]:
            if lines := self._select(_latest_states(raw, plain), log):
                yield self._group(task, moment, lines)

    def _group(self, task: AttemptLogs, moment: float | None, lines: bytes) -> _Group:
        if self._collapser is None:
            lines = self._style(lines, self._prefix(task, moment))
        return _Group(moment, task.label, [lines])

    def _give(self, group: _Group) -> Iterator[bytes]:
        """Yield what is to be written now of a group."""
        if self._collapser is None:
            yield from group.blocks
            return
        for block in group.blocks:
            self._collapser.feed(group.label, block[:-1].split(b"\n"))
        if self._collapser.is_full:
            yield from self._collapser.take_all()

    def _prefix(self, task: AttemptLogs, moment: float | None) -> bytes:
        """Return what goes before each line that was written at `moment`."""
        style = self._line_style
        if style.as_json:
            return json_head(moment, task.label, task.current.attempt)
        if not style.times:
            return self._prefixes[task.label]
        stamp = format_stamp(moment)
        stamp = paint(stamp, "dim") if style.colours else stamp
        return f"{stamp} ".encode() + self._prefixes[task.label]

    def _long_line(
        self, task: AttemptLogs, moment: float | None, first: bytes, rest: Iterator[bytes]
    ) -> Iterator[_Group]:
        """Yield a line longer than a chunk, of which only the first chunk is searched."""
        if task.current in self._native:
            self._native[task.current].interrupt()
        if self._filter.grep is not None and not self._filter.grep.search(first):
            return
        if self._line_style.is_screen or self._collapser is not None:
            yield self._group(task, moment, cut_line(first, sum(map(len, rest))))
            return
        prefix, pieces = self._prefix(task, moment), chain([first], rest)
        is_json = self._line_style.as_json
        blocks = _long_json(prefix, pieces) if is_json else chain([prefix], pieces)
        yield _Group(moment, task.label, blocks)

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


@dataclass(frozen=True, slots=True)
class _Group:
    """Lines of one task that were written at the same time."""

    moment: float | None
    """Unix time; None if it is not known, or not needed."""
    label: str
    blocks: Iterable[bytes]
    """The lines, styled but for the collapser; a long line in pieces, of which only the last one
    ends with a newline."""


def _moment_of(group: _Group) -> float:
    return group.moment or 0.0


def _join(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Join small blocks, so that a stream of single lines is not written line by line."""
    parts, size = list[bytes](), 0
    for block in blocks:
        parts.append(block)
        size += len(block)
        if size >= _LEAST_WRITTEN:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


def _latest_states(block: bytes, plain: bool) -> bytes:
    """Return `block` with each progress bar in its last state, as plain text for a pipe.

    A progress bar is a line with carriage returns.
    """
    if b"\r" not in block:
        return block
    return b"".join(_latest_state(line, plain) + b"\n" for line in block[:-1].split(b"\n"))


def _latest_state(line: bytes, plain: bool) -> bytes:
    if b"\r" not in (line := line.rstrip(b"\r")):
        return line
    # The bar is drawn again after a native message that was written into it.
    state = split_native(latest_state(line)).rpartition(b"\n")[2]
    return sanitize(state, colours=False) if plain else state


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
