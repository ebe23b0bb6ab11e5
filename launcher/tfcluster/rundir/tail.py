"""Reads growing log files by whole lines, from any offset, and finds their last lines.

The file itself is the buffer, so memory stays flat.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tfcluster.agent.regular_files import open_regular

if TYPE_CHECKING:  # `--version` imports this module
    from pathlib import Path

CHUNK = 256 * 1024
SCAN_LIMIT = 16 * 1024 * 1024
"""Bytes of one unfinished line scanned in one go, so that other files get their turn."""
CONTEXT = 64
"""Lines before a line on which may depend whether it is shown: the beginning of its message."""
_LINE_ENDS = re.compile(rb"\r+\n")
_OVERWRITTEN = re.compile(rb"(?m)^[^\n]*\r")


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
    """A reader of the whole lines of one file, from `offset` on, at the caller's pace.

    It holds no file open: a thousand tasks have a thousand logs.
    """

    def __init__(self, path: Path, *, offset: int = 0) -> None:
        self.path, self._name = path, os.fspath(path)
        self.offset = offset
        """Start of the first line that was not yielded yet."""
        self.start = offset
        """Start of the block or the long line that was yielded last."""
        self.has_ended = False
        """True once the writer has ended: a last line without newline then counts as whole."""
        self._scanned = 0
        self._last_return = 0
        self._waited_at = -1

    @property
    def position(self) -> int:
        """The offset up to which the file was scanned; grows with every read that found data."""
        return self.offset + self._scanned

    def size(self) -> int:
        try:
            return os.stat(self._name).st_size
        except OSError:
            return 0

    def read(self) -> Iterator[bytes]:
        """Yield what is available: nothing, one block of whole lines, or one long line in pieces.

        Only the last piece ends with a newline, and it always does. Every piece is yielded once:
        stopping the iteration loses only the rest of that line.
        """
        size = self.size()
        if size == self.offset or (not self.has_ended and size in (self._waited_at, self.position)):
            # Most reads find nothing new: those cost one stat.
            return
        if self._scanned:
            yield from self._read_long_line()
            return
        self.start = self.offset
        block = self._pread(min(CHUNK, size - self.offset), self.offset)
        cut = block.rfind(b"\n") + 1
        if self.has_ended and cut < len(block) < CHUNK:
            self.offset += len(block)
            yield block + b"\n"
        elif cut:
            self.offset += cut
            yield block[:cut] if cut < len(block) else block
        elif len(block) == CHUNK:
            yield from self._read_long_line()
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
        start = max(self.offset, self.size() - limit)
        tail = self._pread(limit, start)
        return b"" if b"\n" in tail else latest_state(tail)

    def skip_to_newest(self, keep: int) -> int:
        """Continue with about the last `keep` bytes; return the number of skipped lines."""
        stop = self.size() - keep
        if stop <= self.offset:
            return 0
        lines, at = 0, self.offset
        while at < stop:
            block = self._pread(min(CHUNK, stop - at), at)
            if not block:
                break
            lines += block.count(b"\n")
            at += len(block)
        return lines + self._skip_past_newline(at)

    def _skip_past_newline(self, at: int) -> int:
        block = self._pread(CHUNK, at)
        found = block.find(b"\n")
        self.offset = at + found + 1 if found >= 0 else at
        self._scanned = self._last_return = 0
        return int(found >= 0)

    def _read_long_line(self) -> Iterator[bytes]:
        """Find the end of a line longer than a chunk, then yield the line's last state."""
        end, size_of_newline = self._find_end()
        if end is None:
            return
        start = max(self.offset, self._last_return)
        self.offset, self._scanned, self._last_return = end + size_of_newline, 0, 0
        while start < end:
            piece = self._pread(min(CHUNK, end - start), start)
            if not piece:
                break
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
            block = self._pread(CHUNK, at)
            found = block.find(b"\n")
            line = block if found < 0 else block[:found]
            kept = line.rstrip(b"\r")
            if (position := kept.rfind(b"\r")) >= 0:
                self._last_return = at + position + 1
            elif self._scanned and kept and self._pread(1, at - 1) == b"\r":
                self._last_return = at
            if found >= 0:
                return at + len(kept), found - len(kept) + 1
            self._scanned += len(block)
            budget -= CHUNK
            if len(block) < CHUNK:
                return (at + len(kept), len(block) - len(kept)) if self.has_ended else (None, 0)
        return None, 0

    def _pread(self, count: int, offset: int) -> bytes:
        try:
            with open_regular(self._name) as file:
                return os.pread(file.fileno(), count, offset)
        except OSError:
            # The file does not exist yet, or the disk fails: the reader tries again later.
            return b""


def start_of_line(path: Path, offset: int) -> int:
    """Return the offset at which the line begins that has the byte at `offset`."""
    try:
        with open_regular(path) as file:
            return _after_newline(file.fileno(), offset, 1)
    except OSError:
        return 0


def end_of_lines(path: Path) -> int:
    """Return the offset at which a file's last whole line ends; 0 if there is none."""
    return tail_offset(path, 0, only_whole=True)


def tail_offset(
    path: Path,
    lines: int,
    pattern: re.Pattern[bytes] | None = None,
    *,
    only_whole: bool = False,
) -> int:
    """Return the offset of the last `lines` lines of a file (those that match `pattern`, if given).

    `only_whole`: text after the last newline does not count as a line. The file is read in blocks
    from its end, because a line may be larger than the memory.
    """
    try:
        size = path.stat().st_size
        if pattern is not None:
            search = pattern.search
            starts = _last_matches(path, search, lines, may_match=search) if lines > 0 else None
            return starts[0] if starts else size
        with open_regular(path) as file:
            has_end = size > 0 and os.pread(file.fileno(), 1, size - 1) == b"\n"
            if lines <= 0 and not only_whole:
                return size
            return _after_newline(file.fileno(), size, lines + (only_whole or has_end))
    except OSError:
        return 0


def _after_newline(fd: int, end: int, number: int) -> int:
    """Return the offset after the newline `number`, counted back from `end`; 0 if there is none."""
    while end > 0:
        start = max(0, end - CHUNK)
        block = os.pread(fd, end - start, start)
        found = block.count(b"\n")
        if found < number:
            number, end = number - found, start
            continue
        at = len(block)
        for _ in range(number):
            at = block.rfind(b"\n", 0, at)
        return start + at + 1
    return 0


def tail_where(path: Path, lines: int, new_test: Callable[[], Callable[[bytes], object]]) -> int:
    """Return the offset of the last `lines` lines of a file that pass a test.

    A test is called with consecutive lines (without newline) from some line on, and may depend on
    up to `CONTEXT` lines before. Each try begins further from the end, with a new test.
    """
    reach = 2 * lines
    while lines > 0:
        begin, trusted = tail_offset(path, reach + CONTEXT), tail_offset(path, reach)
        starts = _last_matches(path, new_test(), lines, begin=begin)
        if begin == 0 or (len(starts) == lines and starts[0] >= trusted):
            return starts[0] if starts else LogSource(path).size()
        reach *= 4
    return tail_offset(path, 0)


def _last_matches(
    path: Path,
    matches: Callable[[bytes], object],
    lines: int,
    *,
    begin: int = 0,
    may_match: Callable[[bytes], object] = lambda block: True,
) -> deque[int]:
    """Return the offsets of the last `lines` lines that match, from `begin` on.

    A line is matched in its latest state, as `MergedLogs` selects it; of a line longer than a
    chunk, only the first chunk is. Blocks that cannot match are skipped.
    """
    starts: deque[int] = deque(maxlen=lines)
    source = LogSource(path, offset=begin)
    source.has_ended = True
    size, before = source.size(), -1
    while before < source.position < size:  # the position does not grow on a failing disk
        before, at = source.position, source.offset
        pieces = source.read()
        block = next(pieces, b"")
        deque(pieces, maxlen=0)
        if not may_match(block):
            continue
        for line in block.removesuffix(b"\n").split(b"\n"):
            if matches(latest_state(line)):
                starts.append(at)
            at += len(line) + 1
    return starts
