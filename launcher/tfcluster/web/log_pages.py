"""Pages of log lines: of one task or merged over all, from any place, without reading whole files.

A place is a cursor, the offsets in all files it is about, such as ``1/worker-0:4711``. A page is
read forward or backward from a cursor; a request reads at most `_SCANNED_BYTES`, so that a search
for a rare text in a large log gives a page of few lines and the cursor from which to go on.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tfcluster.errors import UsageError
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.task_logs import (
    RunLogs,
    TaskLog,
    end_of_lines,
    find_label,
    latest_state,
    rank,
    read_backward,
)
from tfcluster.ui.lines import sanitize
from tfcluster.ui.native_lines import NativeFilter
from tfcluster.web.run_data import is_plain

LINES: Final = 200
"""The lines of a page that asks for no other number."""
MOST_LINES: Final = 2000
_SCANNED_BYTES: Final = 16 * 1024 * 1024
_BLOCK: Final = 32 * 1024
_LEAST_BLOCK: Final = 4 * 1024
"""The bytes read at once: a page of many tasks needs little of each."""
_SHOWN_BYTES: Final = 8 * 1024
"""The bytes of one line that a page has."""


@dataclass(frozen=True, slots=True)
class Query:
    """A request for a page."""

    task: str | None = None
    """A label (``worker:0``, ``prepare``); None: all tasks."""
    attempt: int | None = None
    """The attempt; None means the newest of each task."""
    cursor: str = "end"
    """``start``, ``end``, or the cursor of an earlier page."""
    backward: bool = True
    lines: int = LINES
    grep: str = ""
    """The text that a line must contain; the letters a to z match in either case."""
    shows_native: bool = True
    """False to leave out TensorFlow's own lines about its start, of tasks that have not failed."""


@dataclass(frozen=True, slots=True)
class _Line:
    start: int
    end: int
    text: bytes
    is_hidden: bool = False
    """A native line, which is only counted."""


@dataclass(frozen=True, slots=True)
class _File:
    log: TaskLog
    """The log; it has ended if nothing follows: a last line without newline counts as whole."""
    size: int
    started_at: float
    ended_at: float
    has_failed: bool
    """True if the task has failed by itself: its native lines may say why."""

    @property
    def key(self) -> str:
        """``1/worker-0``: attempt and file name."""
        return f"{self.log.attempt}/{self.log.path.stem}"

    @property
    def label(self) -> str:
        return self.log.label

    @property
    def end(self) -> int:
        """The offset at which the lines end that can be shown."""
        return self.size if self.log.has_ended else end_of_lines(self.log.path)

    def known_time(self, line: _Line) -> float | None:
        """Return when a line was complete, if that is known."""
        return self.log.times.at(min(line.end, self.size) - 1)

    def likely_time(self, line: _Line) -> float:
        """Return when a line was written, or a guess by its place, to merge the lines by."""
        share = line.start / max(self.size, 1)
        guess = self.started_at + (self.ended_at - self.started_at) * share
        return self.known_time(line) or guess


def read_page(paths: RunPaths, snapshot: RunSnapshot, query: Query) -> dict[str, Any]:
    """Return one page of lines for JSON. Raises UsageError for what the run does not have."""
    files = _find_files(paths, snapshot, query)
    begin = _parse_cursor(query.cursor, files)
    chosen = {key: files[key] for key in begin}
    lines, hidden, end = _merge(chosen, begin, query)
    first, last = (end, begin) if query.backward else (begin, end)
    behind = sum(max(0, file.size - last[key]) for key, file in chosen.items())
    return {
        "lines": [_describe(file, line) for file, line in lines],
        "hidden": hidden,
        "before": _format_cursor(first) if any(first.values()) else None,
        "after": _format_cursor(last),
        "behind": behind,
        "at_end": not any(
            last[key] < file.size and last[key] < file.end for key, file in chosen.items()
        ),
    }


def _find_files(paths: RunPaths, snapshot: RunSnapshot, query: Query) -> dict[str, _File]:
    """Return the log files that a page may be about, by their keys."""
    label = None if query.task is None else find_label(snapshot, query.task)
    logs, files = RunLogs(paths.logs), list[_File]()
    for log in logs.discover():
        is_asked = query.attempt in (None, log.attempt) and label in (None, log.label)
        if is_asked and is_plain(log.path.parent, is_folder=True) and is_plain(log.path):
            with contextlib.suppress(FileNotFoundError):  # `tfcluster rm` meanwhile
                files.append(_open(log, snapshot, log is logs.tasks[log.label].newest))
    files.sort(key=lambda file: (file.log.attempt, rank(file.label)))
    return {file.key: file for file in files}


def _open(log: TaskLog, snapshot: RunSnapshot, is_newest: bool) -> _File:
    status = log.path.stat()
    started_at, has_failed = snapshot.started_at, False
    log.has_ended = snapshot.status.is_final or not is_newest
    with contextlib.suppress(KeyError):  # a log of `prepare`
        task = snapshot.task(log.label)
        has_failed = task.ended_by == "itself" and task.exit_code != 0
        if is_newest:
            started_at = task.started_at or started_at
            log.has_ended |= bool(task.ended_at)
    return _File(log, status.st_size, started_at, status.st_mtime, has_failed)


def _parse_cursor(cursor: str, files: Mapping[str, _File]) -> dict[str, int]:
    """Return key → offset; raises UsageError."""
    newest = {file.label: key for key, file in files.items()}
    chosen = dict.fromkeys(newest.values(), 0)
    if cursor == "start":
        return chosen
    if cursor == "end":
        return {key: files[key].end for key in chosen}
    for part in filter(None, cursor.split(",")):
        key, _, offset = part.rpartition(":")
        if not (offset.isascii() and offset.isdecimal()) or len(offset) > 18:
            raise UsageError(f"{part[:80]!r} is not a place in a log")
        if key in files:  # the run may have been deleted meanwhile
            chosen[key] = min(int(offset), files[key].size)
    return chosen


def _format_cursor(offsets: Mapping[str, int]) -> str:
    return ",".join(f"{key}:{offset}" for key, offset in offsets.items())


def _merge(
    files: Mapping[str, _File], begin: Mapping[str, int], query: Query
) -> tuple[list[tuple[_File, _Line]], int, dict[str, int]]:
    """Return the next lines in the order of their times, how many are hidden, and the cursor."""
    end = dict(begin)
    needle = query.grep.encode("utf-8", "replace").lower()
    sign, read = (-1, _read_backward) if query.backward else (1, _read_forward)
    budget = _SCANNED_BYTES // max(len(files), 1)
    readers = {
        key: read(_Reading(file, begin[key], needle, budget, end, shows_native))
        for key, file in files.items()
        for shows_native in [query.shows_native or file.has_failed]
    }
    heads: list[tuple[float, int, str, _Line]] = []

    def advance(key: str, place: int) -> None:
        if (line := next(readers[key], None)) is not None:
            time = files[key].likely_time(line)
            heapq.heappush(heads, (sign * time, place, key, line))

    for place, key in enumerate(files):
        advance(key, sign * place)
    shown, hidden = list[tuple[_File, _Line]](), 0
    while heads and len(shown) < min(query.lines, MOST_LINES):
        _, place, key, line = heapq.heappop(heads)
        if line.is_hidden:
            hidden += 1
        else:
            shown.append((files[key], line))
        advance(key, place)
    for _, _, key, line in heads:  # read, but not part of this page
        end[key] = line.end if query.backward else line.start
    return shown[::sign], hidden, end


@dataclass(frozen=True, slots=True)
class _Reading:
    """The lines of one file from `offset` on that contain `needle`, in small letters."""

    file: _File
    offset: int
    needle: bytes
    budget: int
    """The bytes to read at most, but at least one block."""
    passed: dict[str, int]
    """The file's key → the offset up to which the lines were read, for the cursor."""
    shows_native: bool

    @property
    def block(self) -> int:
        return max(_LEAST_BLOCK, min(_BLOCK, self.budget // 4))

    def select(self, block: bytes, start: int, end: int) -> Iterator[_Line]:
        """Yield the lines of `block`, which begins at the offset `start`.

        The last one ends at `end`: of a long line, `block` has the part that is shown.
        """
        if self.needle not in block.lower():
            return
        without_native = NativeFilter()
        lines = block.removesuffix(b"\n").split(b"\n")
        for number, raw in enumerate(lines, start=1):
            is_hidden = not self.shows_native and without_native(raw + b"\n") == b""
            next_start = start + len(raw) + 1 if number < len(lines) else end
            line = _Line(start, next_start, latest_state(raw), is_hidden)
            if self.needle in line.text.lower():
                yield line
            start = next_start


def _read_forward(reading: _Reading) -> Iterator[_Line]:
    file, log = reading.file, reading.file.log
    log.move_to(reading.offset)
    while log.offset < file.size and log.offset - reading.offset <= reading.budget:
        pieces = log.read(reading.block)
        first = next(pieces, b"")
        deque(pieces, maxlen=0)  # of a line longer than a chunk, the rest is read and dropped
        if not first:
            return  # a line that is not finished yet, or the run was deleted
        yield from reading.select(first, log.start, log.offset)
        reading.passed[file.key] = log.offset


def _read_backward(reading: _Reading) -> Iterator[_Line]:
    file, end = reading.file, reading.offset
    for start, block in read_backward(file.log.path, end, reading.block):
        yield from reversed(list(reading.select(block, start, end)))
        end = reading.passed[file.key] = start
        if reading.offset - end > reading.budget:
            return


def _describe(file: _File, line: _Line) -> dict[str, Any]:
    text = sanitize(line.text[:_SHOWN_BYTES].replace(b"\n", b"") + b"\n", colours=False)
    described: dict[str, Any] = {
        "task": file.label,
        "attempt": file.log.attempt,
        "offset": line.start,
        "text": text.decode()[:-1],
    }
    if (time := file.known_time(line)) is not None:
        described["time"] = time
    if len(line.text) > _SHOWN_BYTES:
        described["cut"] = line.end - line.start
    return described
