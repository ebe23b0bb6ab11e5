"""The logs of a run's tasks: which there are, their lines as they grow, and when each was written.

Each attempt of a task has a file, ``logs/attempt-2/worker-0.log``, and each node's prepare step
``logs/prepare/NODE.log``, which counts as attempt 0. The terminal, the Python API, the web page and
the diagnosis of a failure all read them here, through `read_at`. The files themselves are the
buffer, so memory stays flat, and none is held open: a thousand tasks have a thousand logs.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tfcluster.agent.catalogue import PREPARE
from tfcluster.agent.error_text import describe_error
from tfcluster.agent.foreign_json import open_regular
from tfcluster.agent.tasks.output import TIMES_ENTRY, times_path
from tfcluster.errors import UsageError
from tfcluster.plans.context import LOCAL
from tfcluster.plans.plan import TaskId
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.spec import JOBS

CHUNK = 256 * 1024
SCAN_LIMIT = 16 * 1024 * 1024
"""Bytes of one unfinished line scanned in one go, so that other files get their turn."""
_LINE_ENDS = re.compile(rb"\r+\n")
_OVERWRITTEN = re.compile(rb"(?m)^[^\n]*\r")
_ATTEMPT = re.compile(r"attempt-(\d+)")
_TIME_STAMPS_SETTLE_NS = 1_000_000_000
"""A folder may change twice within one tick of its time stamp."""
_LATEST_TIME = 1e11
"""A limit for damaged files: no clock shows the year 5138."""


def read_at(path: str | Path, count: int, offset: int) -> bytes:
    """Return at most `count` bytes of a file; none if it cannot be read (yet)."""
    try:
        with open_regular(path) as file:
            return os.pread(file.fileno(), count, offset)
    except OSError:
        return b""


def file_size(path: str | Path) -> int:
    """Return the size of a file in bytes; 0 if there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def latest_states(block: bytes) -> bytes:
    """Return every line from its last carriage return on: a progress bar in its last state.

    `block` is whole lines; a carriage return just before the newline is part of the line's end.
    """
    if b"\r" not in block:
        return block
    return _OVERWRITTEN.sub(b"", _LINE_ENDS.sub(b"\n", block))


def latest_state(partial: bytes) -> bytes:
    """Return the latest state of a line that has no newline yet."""
    return partial.rstrip(b"\r").rpartition(b"\r")[2]


class LogSource:
    """A reader of the whole lines of one growing file, from `offset` on, at the caller's pace."""

    def __init__(self, path: Path, *, offset: int = 0) -> None:
        self.path, self._name = path, os.fspath(path)
        self.start = offset
        """Start of the block or the long line that was yielded last."""
        self.has_ended = False
        """True once the writer has ended: a last line without newline then counts as whole."""
        self.move_to(offset)

    def move_to(self, offset: int) -> None:
        """Continue with the line that begins at `offset`."""
        self.offset = offset
        """Start of the first line that was not yielded yet."""
        self._scanned = self._last_return = 0
        """The bytes of a long line whose end is not found yet; where its last state begins."""
        self._waited_at = -1
        """The size at which the file ended with a part of a line."""

    @property
    def position(self) -> int:
        """The offset up to which the file was scanned; grows with every read that found data."""
        return self.offset + self._scanned

    def size(self) -> int:
        return file_size(self._name)

    def read(self, most: int = CHUNK) -> Iterator[bytes]:
        """Yield what is available: nothing, one block of whole lines, or one long line in pieces.

        Only the last piece ends with a newline, and it always does. Every piece is yielded once:
        stopping the iteration loses only the rest of that line. A block has at most `most` bytes
        unless its first line is longer.
        """
        size = self.size()
        if size == self.offset or (not self.has_ended and size in (self._waited_at, self.position)):
            # Most reads find nothing new: those cost one stat.
            return
        if self._scanned:
            yield from self._read_long_line()
            return
        self.start = self.offset
        block = read_at(self._name, min(most, size - self.offset), self.offset)
        cut = block.rfind(b"\n") + 1
        if self.has_ended and cut < len(block) < most:
            self.offset += len(block)
            yield block + b"\n"
        elif cut:
            self.offset += cut
            yield block[:cut] if cut < len(block) else block
        elif len(block) == most:
            yield from self.read() if most < CHUNK else self._read_long_line()
        else:
            self._waited_at = size

    def lines(self) -> Iterator[bytes]:
        """Yield every line there is, without its newline; of a progress bar, the last state."""
        before = -1
        while before < self.position:
            before = self.position
            if block := b"".join(self.read()):
                yield from latest_states(block)[:-1].split(b"\n")

    def partial(self, limit: int = 4096) -> bytes:
        """Return the latest state of the line without newline, at most its last `limit` bytes."""
        tail = read_at(self._name, limit, max(self.offset, self.size() - limit))
        return b"" if b"\n" in tail else latest_state(tail)

    def skip_to_newest(self, keep: int) -> int:
        """Continue with about the last `keep` bytes; return the number of skipped lines."""
        stop = self.size() - keep
        if stop <= self.offset:
            return 0
        lines, at = 0, self.offset
        while at < stop and (block := read_at(self._name, min(CHUNK, stop - at), at)):
            lines += block.count(b"\n")
            at += len(block)
        newline = read_at(self._name, CHUNK, at).find(b"\n")
        self.move_to(at + newline + 1)
        return lines + (newline >= 0)

    def _read_long_line(self) -> Iterator[bytes]:
        """Find the end of a line longer than a chunk, then yield the line's last state."""
        end, size_of_newline = self._find_end()
        if end is None:
            return
        start = max(self.offset, self._last_return)
        self.move_to(end + size_of_newline)
        while start < end and (piece := read_at(self._name, min(CHUNK, end - start), start)):
            start += len(piece)
            yield piece
        yield b"\n"

    def _find_end(self) -> tuple[int | None, int]:
        """Return the line's end (None if not found yet) and the size of its newline.

        The end of the file counts once the writer has ended.
        """
        budget = SCAN_LIMIT
        while budget > 0:
            at = self.offset + self._scanned
            block = read_at(self._name, CHUNK, at)
            newline = block.find(b"\n")
            line = block if newline < 0 else block[:newline]
            kept = line.rstrip(b"\r")
            if (position := kept.rfind(b"\r")) >= 0:
                self._last_return = at + position + 1
            elif self._scanned and kept and read_at(self._name, 1, at - 1) == b"\r":
                self._last_return = at
            if newline >= 0:
                return at + len(kept), newline - len(kept) + 1
            self._scanned += len(block)
            budget -= CHUNK
            if len(block) < CHUNK:
                return (at + len(kept), len(block) - len(kept)) if self.has_ended else (None, 0)
        return None, 0


def read_backward(path: Path, end: int, most: int = CHUNK) -> Iterator[tuple[int, bytes]]:
    """Yield the lines before the offset `end` in blocks with their starts, the last block first.

    A line that is longer than `most` bytes comes alone and without its newline: its beginning, or
    the last state of a progress bar, in at most a chunk.
    """
    while end > 0:
        start = max(0, end - most)
        block = read_at(path, end - start, start)
        newline = block.find(b"\n", 0, len(block) - 1)
        if not block:
            return  # the disk fails, or the run was deleted
        if start and newline < 0:
            start = start_of_line(path, start)
            block = _long_line(path, start, end)
        elif start:
            start, block = start + newline + 1, block[newline + 1 :]
        yield start, block
        end = start


def _long_line(path: Path, start: int, end: int) -> bytes:
    last = read_at(path, min(CHUNK, end - start), max(start, end - CHUNK)).removesuffix(b"\n")
    if len(state := latest_state(last)) < len(last):
        return state
    return read_at(path, min(CHUNK, end - start), start).removesuffix(b"\n")


def start_of_line(path: Path, offset: int) -> int:
    """Return the offset at which the line begins that has the byte at `offset`."""
    while offset > 0:
        start = max(0, offset - CHUNK)
        newline = read_at(path, offset - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        offset = start
    return 0


def end_of_lines(path: Path) -> int:
    """Return the offset at which a file's last whole line ends; 0 if there is none."""
    return start_of_line(path, file_size(path))


LineTest = Callable[[bytes], object]
"""A test of a line in its latest state, without newline."""


def tail_offset(
    path: Path,
    count: int,
    test_of: Callable[[bytes], LineTest | None] = lambda block: lambda line: True,
) -> int:
    """Return the offset of the last `count` lines of a file, those that pass a test if given.

    `test_of` gets a block and returns the test that its lines get in order; None if none passes.
    """
    size = first = file_size(path)
    for start, block in read_backward(path, size) if count > 0 else ():
        if (passes := test_of(block)) is None:
            continue
        starts, at = list[int](), start
        for line in block.removesuffix(b"\n").split(b"\n"):
            if passes(latest_state(line)):
                starts.append(at)
            at += len(line) + 1
        if len(starts) >= count:
            return starts[-count]
        count -= len(starts)
        first = starts[0] if starts else first
    return first


def last_lines(path: Path, *, within: int = 64 * 1024) -> list[bytes]:
    """Return the lines among the last `within` bytes of a log; none if it cannot be read.

    A progress bar is in its last state; a line that begins before is left out, unless it is alone.
    """
    start = max(0, file_size(path) - within)
    tail = read_at(path, within, start).removesuffix(b"\n")
    if start and b"\n" in tail:
        tail = tail[tail.find(b"\n") + 1 :]
    return latest_states(tail + b"\n")[:-1].split(b"\n") if tail else []


def last_text(path: Path) -> str:
    """Return the last 64 KiB of a log, from the beginning of a line on."""
    return b"\n".join(last_lines(path)).decode(errors="replace")


def last_line(path: Path) -> str:
    """Return the last line of a log that is not blank, stripped; empty if there is none."""
    lines = (line.strip() for line in reversed(last_lines(path)))
    return next(filter(None, lines), b"").decode(errors="replace")


def last_output(logs: Iterable[Path], now: float) -> float:
    """Return when one of `logs` was last written, on the clock that shows `now`; or 0."""
    newest = 0.0
    for log in logs:
        with contextlib.suppress(OSError):
            newest = max(newest, log.stat().st_mtime)
    return now - max(0.0, time.time() - newest) if newest else 0.0


class LogTimes:
    """Tells when the parts of one log were written, from the time index beside it.

    An entry of the index (`agent.tasks.output.TimeIndex`) is an offset of the log and the time at
    which what follows was written, at most ten per second. It is read in parts, because that of
    a long run is large.
    """

    WINDOW = 1024
    """The entries that are read at once."""

    def __init__(self, log: Path) -> None:
        self._path = times_path(os.fspath(log))
        self._offsets: list[int] = []
        self._times: list[float] = []
        self._end = 0.0
        """The offset from which on another part of the index must be read."""

    @property
    def exists(self) -> bool:
        return os.path.exists(self._path)

    def refresh(self) -> None:
        """Expect new entries at the end of the index; to be called before new lines are shown."""
        if self._end == math.inf:
            self._offsets = []

    def at(self, offset: int) -> float | None:
        """Return when the byte at `offset` was written (Unix time, within 0.1 s), if known.

        The time of a line is that of its last byte: a progress bar's last state.
        """
        return self._entry_of(offset)[0]

    def groups(self, block: bytes, start: int) -> Iterator[tuple[float | None, bytes]]:
        """Yield the whole lines of `block`, which begins at the offset `start`, by their times."""
        at = 0
        while at < len(block):
            moment, end = self._entry_of(start + block.index(b"\n", at))
            cut = block.rindex(b"\n", at, int(min(end - start, len(block)))) + 1
            yield moment, block[at:cut]
            at = cut

    def _entry_of(self, offset: int) -> tuple[float | None, float]:
        """Return when the byte at `offset` was written, if known, and up to where that holds."""
        if not self._offsets or not self._offsets[0] <= offset < self._end:
            self._load(offset)
        place = bisect_right(self._offsets, offset)
        moment = self._times[place - 1] if place else 0.0
        end = self._offsets[place] if place < len(self._offsets) else self._end
        # The offsets of a damaged index may go back.
        return moment if 0.0 < moment < _LATEST_TIME else None, max(end, offset + 1)

    def find(self, moment: float) -> int | None:
        """Return the first offset written at or after `moment`; None if none is known."""
        number = bisect_left(self._numbers(), moment, key=lambda n: self._entry(n)[1])
        return self._entry(number)[0] if number in self._numbers() else None

    def _load(self, offset: int) -> None:
        """Read the part of the index that has the time of `offset`."""
        self._offsets, self._times, self._end = [], [], math.inf
        if not (numbers := self._numbers()):
            return
        number = bisect_right(numbers, offset, key=lambda n: self._entry(n)[0])
        first = max(0, number - self.WINDOW // 2)  # lines before may be next, or lines after
        size = TIMES_ENTRY.size
        raw = read_at(self._path, (self.WINDOW + 1) * size, first * size)
        entries = list(TIMES_ENTRY.iter_unpack(raw[: len(raw) // size * size]))
        self._end = entries.pop()[0] if len(entries) > self.WINDOW else math.inf
        self._offsets = [entry[0] for entry in entries]
        self._times = [entry[1] for entry in entries]

    def _numbers(self) -> range:
        """Return the numbers of the whole entries: a crash may leave half an entry at the end."""
        return range(file_size(self._path) // TIMES_ENTRY.size)

    def _entry(self, number: int) -> tuple[int, float]:
        raw = read_at(self._path, TIMES_ENTRY.size, number * TIMES_ENTRY.size)
        return TIMES_ENTRY.unpack(raw) if len(raw) == TIMES_ENTRY.size else (sys.maxsize, math.inf)


def prepare_label(node: str) -> str:
    """Return the label of a node's prepare step in the merged stream."""
    return PREPARE if node == LOCAL else f"{PREPARE}@{node}"


def label_of(path: Path) -> str:
    """Return the label of the task whose log is `path`."""
    if path.parent.name == PREPARE:
        return prepare_label(path.stem)
    try:
        return str(TaskId.parse(path.stem))
    except ValueError:
        return path.stem


def find_label(state: RunSnapshot, task: str) -> str:
    """Return the label of the task that a user names. Raises UsageError if the run lacks it."""
    if task.partition("@")[0] == PREPARE:
        return task
    try:
        label = str(TaskId.parse(task))
    except ValueError as error:
        raise UsageError(describe_error(error)) from error
    known = [each.task for each in state.tasks]
    if label not in known:
        raise UsageError(f"{state.run} has no task {label}", fix=f"one of {', '.join(known)}")
    return label


def rank(label: str) -> tuple[int, str, int]:
    """Return a sort key for labels: prepare, then the order of `JOBS`, by number."""
    job, _, index = label.partition(":")
    place = JOBS.index(job) + 1 if job in JOBS else 0
    return place, job, int(index) if index.isdecimal() else 0


class TaskLog(LogSource):
    """The log of one attempt of a task."""

    def __init__(self, path: Path, attempt: int) -> None:
        super().__init__(path)
        self.label, self.attempt, self.times = label_of(path), attempt, LogTimes(path)


class AttemptLogs:
    """The logs of one task, which are read one attempt after the other."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.logs: deque[TaskLog] = deque()

    @property
    def current(self) -> TaskLog:
        return self.logs[0]

    @property
    def newest(self) -> TaskLog:
        return self.logs[-1]

    def add(self, log: TaskLog) -> None:
        self.logs = deque(sorted((*self.logs, log), key=lambda each: each.attempt))

    def mark_ended(self, attempt: int) -> None:
        """Note that no more lines come of this attempt and those before."""
        for log in self.logs:
            log.has_ended |= log.attempt <= attempt

    def read(self, most: int = CHUNK) -> Iterator[bytes]:
        """Yield a block or a long line of `current`, as `LogSource.read` does."""
        while True:
            log, before = self.current, self.current.position
            yield from log.read(most)
            if log.position != before or len(self.logs) == 1:
                return
            # A newer attempt of this task has started: this file and its last line are complete.
            if not log.has_ended:
                log.has_ended = True
                continue
            self.logs.popleft()


class RunLogs:
    """The logs of a run, which `discover` finds as they are created, by task and attempt."""

    def __init__(
        self,
        logs: Path,
        includes: Callable[[str, int], bool] = lambda label, attempt: True,
        watch: Callable[[Path], None] = lambda folder: None,
    ) -> None:
        """`includes` chooses labels and attempts; `watch` gets each folder that may get more."""
        self._folder, self._includes, self._watch = logs, includes, watch
        self.tasks: dict[str, AttemptLogs] = {}
        """Label → its logs, in the order of `rank`."""
        self._known: set[tuple[Path, str]] = set()
        self._folder_times: dict[Path, int] = {}

    def discover(self) -> list[TaskLog]:
        """Find the files since the last call, and return them; cheap if there are none."""
        new_logs = [TaskLog(path, attempt) for attempt, path in self._new_files()]
        new_logs = [log for log in new_logs if self._includes(log.label, log.attempt)]
        for log in new_logs:
            self.tasks.setdefault(log.label, AttemptLogs(log.label)).add(log)
        if new_logs:
            self.tasks = dict(sorted(self.tasks.items(), key=lambda pair: rank(pair[0])))
        return new_logs

    def files(self) -> Iterator[TaskLog]:
        """Yield the logs that were found and not yet read to their end, task by task."""
        return (log for task in self.tasks.values() for log in task.logs)

    def mark_all_ended(self) -> None:
        for task in self.tasks.values():
            task.mark_ended(task.newest.attempt)

    def lines(self) -> Iterator[tuple[TaskLog, bytes]]:
        """Yield every line there is, of a progress bar the last state, with its log."""
        for task in self.tasks.values():
            before = None
            while before != (progress := (task.current, task.current.position)):
                before = progress
                if block := b"".join(task.read()):
                    log = task.current
                    for line in latest_states(block)[:-1].split(b"\n"):
                        yield log, line

    def _new_files(self) -> Iterator[tuple[int, Path]]:
        """Yield attempt and path of the files since the last call."""
        for attempt, folder in _attempt_folders(self._folder):
            if folder not in self._folder_times:
                self._watch(folder)  # first: a log that is created in between is then reported
            try:
                changed = folder.stat().st_mtime_ns  # changes when a file is created in the folder
            except FileNotFoundError:
                changed = 0  # `tfcluster rm` deleted it while a view is open
            if self._folder_times.get(folder) == changed:
                continue
            is_settled = time.time_ns() - changed > _TIME_STAMPS_SETTLE_NS
            self._folder_times[folder] = changed if is_settled else 0
            with contextlib.suppress(FileNotFoundError):  # `tfcluster rm` while a view is open
                for name in os.listdir(folder):  # ten times as fast as `Path.glob` for a thousand
                    if name.endswith(".log") and (folder, name) not in self._known:
                        self._known.add((folder, name))
                        yield attempt, folder / name


def newest_attempts(logs: Path) -> dict[str, int]:
    """Return label → newest attempt that has a log; tasks restart together or alone."""
    run_logs = RunLogs(logs)
    run_logs.discover()
    return {label: task.newest.attempt for label, task in run_logs.tasks.items()}


def _attempt_folders(logs: Path) -> list[tuple[int, Path]]:
    """Return attempt number and folder of each attempt; prepare (0) comes first."""
    folders = []
    with contextlib.suppress(FileNotFoundError):
        for folder in logs.iterdir():
            if match := _ATTEMPT.fullmatch(folder.name):
                folders.append((int(match[1]), folder))
            elif folder.name == PREPARE:
                folders.append((0, folder))
    return sorted(folders)
