"""Pages of log lines: of one task or merged over all, from any place, without reading whole files.

A place is a cursor, the offsets in all files it is about, such as ``1/worker-0:4711``. A page is
read forward or backward from a cursor; a request reads at most `_SCANNED_BYTES`, so that a search
for a rare text in a large log gives a page of few lines and the cursor from which to go on.
"""

from __future__ import annotations

import contextlib
import heapq
import os
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tfcluster.agent.regular_files import open_regular
from tfcluster.errors import UsageError
from tfcluster.rundir.log_files import find_label, label_of, log_folders, newest_attempts, rank
from tfcluster.rundir.log_times import LogTimes
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.tail import CHUNK, LogSource, end_of_lines, latest_state
from tfcluster.ui.lines import sanitize
from tfcluster.ui.native_lines import NativeFilter
from tfcluster.web.run_data import is_own

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
    lines: int = 200
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
    key: str
    """``1/worker-0``: attempt and file name."""
    label: str
    attempt: int
    path: Path
    size: int
    has_ended: bool
    """True if nothing follows: a last line without newline counts as whole."""
    started_at: float
    ended_at: float
    has_failed: bool
    """True if the task has failed by itself: its native lines may say why."""
    times: LogTimes

    def known_time(self, line: _Line) -> float | None:
        """Return when a line was complete, if that is known."""
        return self.times.at(min(line.end, self.size) - 1)

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
    found, hidden, end = _merge(chosen, begin, query)
    first, last = (end, begin) if query.backward else (begin, end)
    behind = sum(max(0, file.size - last[key]) for key, file in chosen.items())
    return {
        "lines": [_describe(file, line) for file, line in found],
        "hidden": hidden,
        "before": _format_cursor(first) if any(first.values()) else None,
        "after": _format_cursor(last),
        "behind": behind,
        "at_end": not any(_has_more(file, last[key]) for key, file in chosen.items()),
    }


def _find_files(paths: RunPaths, snapshot: RunSnapshot, query: Query) -> dict[str, _File]:
    """Return the log files that a page may be about, by their keys."""
    label = None if query.task is None else find_label(snapshot, query.task)
    newest = newest_attempts(paths.logs)
    found: list[_File] = []
    for attempt, folder in log_folders(paths.logs):
        if query.attempt not in (None, attempt) or not is_own(folder, is_folder=True):
            continue
        for path in folder.glob("*.log"):
            name = label_of(path)
            if label in (None, name) and is_own(path):
                with contextlib.suppress(FileNotFoundError):  # `tfcluster rm` meanwhile
                    found.append(_open(path, attempt, snapshot, attempt == newest.get(name)))
    found.sort(key=lambda file: (file.attempt, rank(file.label)))
    return {file.key: file for file in found}


def _open(path: Path, attempt: int, snapshot: RunSnapshot, is_newest: bool) -> _File:
    label, status = label_of(path), path.stat()
    started_at, has_ended = snapshot.started_at, snapshot.status.is_final or not is_newest
    has_failed = False
    with contextlib.suppress(KeyError):  # a log of `prepare`
        task = snapshot.task(label)
        has_failed = task.ended_by == "itself" and task.exit_code != 0
        if is_newest:
            started_at, has_ended = task.started_at or started_at, has_ended or bool(task.ended_at)
    return _File(
        key=f"{attempt}/{path.stem}",
        label=label,
        attempt=attempt,
        path=path,
        size=status.st_size,
        has_ended=has_ended,
        started_at=started_at,
        ended_at=status.st_mtime,
        has_failed=has_failed,
        times=LogTimes(path),
    )


def _parse_cursor(cursor: str, files: Mapping[str, _File]) -> dict[str, int]:
    """Return key → offset; raises UsageError."""
    newest = {file.label: key for key, file in files.items()}
    chosen = dict.fromkeys(newest.values(), 0)
    if cursor == "start":
        return chosen
    if cursor == "end":
        return {key: _end_of(files[key]) for key in chosen}
    for part in filter(None, cursor.split(",")):
        key, _, offset = part.rpartition(":")
        if not (offset.isascii() and offset.isdecimal()) or len(offset) > 18:
            raise UsageError(f"{part[:80]!r} is not a place in a log")
        if key in files:  # the run may have been deleted meanwhile
            chosen[key] = min(int(offset), files[key].size)
    return chosen


def _format_cursor(offsets: Mapping[str, int]) -> str:
    return ",".join(f"{key}:{offset}" for key, offset in offsets.items())


def _end_of(file: _File) -> int:
    return file.size if file.has_ended else end_of_lines(file.path)


def _has_more(file: _File, offset: int) -> bool:
    return offset < file.size and offset < _end_of(file)


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
    found, hidden = list[tuple[_File, _Line]](), 0
    while heads and len(found) < min(query.lines, MOST_LINES):
        _, place, key, line = heapq.heappop(heads)
        if line.is_hidden:
            hidden += 1
        else:
            found.append((files[key], line))
        advance(key, place)
    for _, _, key, line in heads:  # read, but not part of this page
        end[key] = line.end if query.backward else line.start
    return found[::sign], hidden, end


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

    def select(self, block: bytes, at: int) -> Iterator[_Line]:
        """Yield the lines of `block`, whole lines that begin at the offset `at`."""
        if self.needle not in block.lower():
            return
        without_native = NativeFilter()
        for raw in block.removesuffix(b"\n").split(b"\n"):
            is_hidden = not self.shows_native and without_native(raw + b"\n") == b""
            line = _Line(at, at + len(raw) + 1, latest_state(raw), is_hidden)
            if self.needle in line.text.lower():
                yield line
            at = line.end


def _read_forward(reading: _Reading) -> Iterator[_Line]:
    file, at = reading.file, reading.offset
    with contextlib.suppress(OSError), open_regular(file.path) as opened:
        while at < file.size and at - reading.offset <= reading.budget:
            block = os.pread(opened.fileno(), min(reading.block, file.size - at), at)
            end = at + block.rfind(b"\n") + 1
            if end > at:
                yield from reading.select(block[: end - at], at)
            elif block and at + len(block) >= file.size:
                if not file.has_ended:
                    return  # a line that is not finished yet
                end = at + len(block)
                yield from reading.select(block, at)
            else:
                end = yield from _read_long_line(reading, at)
            if end == at:
                return
            at = reading.passed[file.key] = end


def _read_long_line(reading: _Reading, at: int) -> Generator[_Line, None, int]:
    """Yield the line at the offset `at`, which is longer than a block; return its end."""
    source = LogSource(reading.file.path, offset=at)
    source.has_ended = reading.file.has_ended
    pieces = source.read()
    first = next(pieces, b"")
    if not first.endswith(b"\n"):
        deque(pieces, maxlen=0)  # a line longer than a chunk: the rest is read and dropped
        if first and reading.needle in first.lower():
            yield _Line(at, source.offset, first)
        return source.offset
    line = first[: first.find(b"\n") + 1]
    yield from reading.select(line, at)
    return at + len(line)


def _read_backward(reading: _Reading) -> Iterator[_Line]:
    file, end = reading.file, reading.offset
    with contextlib.suppress(OSError), open_regular(file.path) as opened:
        fd = opened.fileno()
        while end > 0 and reading.offset - end <= reading.budget:
            start = max(0, end - reading.block)
            block = os.pread(fd, end - start, start)
            newline = block.find(b"\n", 0, len(block) - 1)
            if start == 0 or newline >= 0:
                block = block[newline + 1 :] if start else block
                start = end - len(block)
                yield from reversed(list(reading.select(block, start)))
            else:
                start = _start_of_line(fd, start)
                text = _long_text(fd, start, end)
                if reading.needle in text.lower():
                    yield _Line(start, end, text)
            end = reading.passed[file.key] = start


def _start_of_line(fd: int, end: int) -> int:
    """Return where the line that holds the byte before `end` begins.

    Of a line of very many megabytes, the end counts as a line of its own.
    """
    start = end
    while start > max(0, end - _SCANNED_BYTES):
        block_end, start = start, max(0, start - CHUNK)
        newline = os.pread(fd, block_end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
    return start


def _long_text(fd: int, start: int, end: int) -> bytes:
    """Return the first chunk of a long line, or the latest state of a progress bar."""
    last = os.pread(fd, min(CHUNK, end - start), max(start, end - CHUNK)).removesuffix(b"\n")
    state = latest_state(last)
    return state if len(state) < len(last) else os.pread(fd, min(CHUNK, end - start), start)


def _describe(file: _File, line: _Line) -> dict[str, Any]:
    text = sanitize(line.text[:_SHOWN_BYTES].replace(b"\n", b"") + b"\n", colours=False)
    found: dict[str, Any] = {"task": file.label, "attempt": file.attempt, "offset": line.start}
    found |= {"text": text.decode()[:-1]}
    if (time := file.known_time(line)) is not None:
        found["time"] = time
    if len(line.text) > _SHOWN_BYTES:
        found["cut"] = line.end - line.start
    return found
