"""Pure functions on blocks of whole lines: progress bars, prefixes, sanitizing, collapsing.

They run at C speed: no Python code per line on the hot path.

The `sanitize` functions keep control sequences from a screen: `MergedLogs` calls them for the
tasks' lines, `Terminal` for everything else.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

from tfcluster.control_characters import remove_controls

_PLAIN = bytes((0x09, 0x0A, *range(0x20, 0x7F)))
"""The bytes of most lines; none of them can harm a screen."""
_RAW_IN_JSON = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters and surrogates that `json.dumps` without `ensure_ascii` does not escape."""
WINDOW_S = 0.4
"""Seconds that a line waits for identical lines from other tasks."""
MAX_LINE_BYTES = 8 * 1024
"""Bytes of one line that a terminal gets."""
MAX_WAITING_LINES = 20_000
"""Waiting lines of all tasks above which they are all given at once."""


def prefix_lines(block: bytes, prefix: bytes) -> bytes:
    """Return `block` (whole lines, at least one) with `prefix` before every line."""
    return b"".join((prefix, block[:-1].replace(b"\n", b"\n" + prefix), b"\n"))


def sanitize(block: bytes, *, colours: bool) -> bytes:
    """Return `block` without what could move the cursor, ring or rename the window.

    Colour sequences stay if `colours`, and are reset at the end of their line; other sequences are
    removed, other control characters become their pictures (␀ ␇ ␛), invalid UTF-8 becomes �.
    """
    if not block.translate(None, _PLAIN):
        return block
    text = remove_controls(block.decode("utf-8", "replace"), colours=colours)
    # An escape that is still there begins a colour.
    return (text.replace("\n", "\x1b[0m\n") if "\x1b" in text else text).encode()


def sanitize_text(text: str) -> str:
    """Return `text` without controls and colours: an exception's message, a metric's name."""
    return remove_controls(text)


def sanitize_except_colours(text: str) -> str:
    """Return `text`, which `ui` has coloured, with its colours but without other controls."""
    return remove_controls(text, colours=True)


def escape_json(text: str) -> str:
    """Return JSON of the same value in which control characters and surrogates are escaped."""
    return _RAW_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def format_stamp(moment: float | None) -> str:
    """Return ``2026-11-23 12:24:11.8`` in local time, or blanks of that width if unknown."""
    if moment is None:
        return " " * 21
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(moment))}.{int(moment * 10) % 10}"


def json_head(moment: float | None, label: str, attempt: int) -> bytes:
    """Return the beginning of a line's JSON object, to which `json_text` and ``"}`` are added."""
    when = "null" if moment is None else f"{moment:.1f}"
    head = f'{{"time": {when}, "task": "{json_text(label)}", "attempt": {attempt}, "line": "'
    return head.encode()


def json_text(text: str) -> str:
    """Return `text` as it is inside the quotes of a JSON string."""
    return escape_json(json.dumps(text, ensure_ascii=False))[1:-1]


def select_lines(block: bytes, pattern: re.Pattern[bytes]) -> bytes:
    """Return the lines of `block` that match `pattern`."""
    if pattern.search(block) is None:
        return b""
    lines = [line + b"\n" for line in block[:-1].split(b"\n") if pattern.search(line)]
    return b"".join(lines)


def cut_line(line: bytes, more: int = 0) -> bytes:
    """Return the beginning of a line, of which `more` bytes are not in `line`, and a note."""
    note = f" … (a line of {len(line) + more - 1:,} bytes; the log has it)\n".encode()
    return line[: MAX_LINE_BYTES - len(note)] + note


def cut_long_lines(block: bytes) -> bytes:
    """Return `block` with each line in at most `MAX_LINE_BYTES`; costs one search per 8 KiB."""
    at = 0
    while len(block) - at > MAX_LINE_BYTES:
        end = block.rfind(b"\n", at, at + MAX_LINE_BYTES) + 1
        if not end:
            lines = (line + b"\n" for line in block[:-1].split(b"\n"))
            return b"".join(cut_line(x) if len(x) > MAX_LINE_BYTES else x for x in lines)
        at = end
    return block


class Collapser:
    """Merges identical lines of several tasks into one, and keeps the order of each task's lines.

    Each task has a short queue; identical lines at the heads of the queues leave together.
    """

    def __init__(self, style_line: Callable[[str, bytes, int], bytes]) -> None:
        self._style_line = style_line
        self._queues: dict[str, deque[bytes]] = {}
        self._counts: dict[str, Counter[bytes]] = {}
        self._size = 0
        self._waiting_since: float | None = None

    def feed(self, label: str, lines: Sequence[bytes]) -> None:
        """Take the next lines of a task."""
        if not lines:
            return
        self._queues.setdefault(label, deque()).extend(lines)
        self._counts.setdefault(label, Counter()).update(lines)
        self._size += len(lines)
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()

    @property
    def is_full(self) -> bool:
        return self._size > MAX_WAITING_LINES

    def take_due(self) -> Iterator[bytes]:
        """Yield all waiting lines once the window is over, or once very many wait."""
        waited = 0.0 if self._waiting_since is None else time.monotonic() - self._waiting_since
        if waited >= WINDOW_S or self.is_full:
            yield from self.take_all()

    def take_all(self) -> Iterator[bytes]:
        """Yield all waiting lines."""
        self._waiting_since, self._size = None, 0
        while group := self._next_group():
            label, line = group[0], self._queues[group[0]][0]
            for member in group:
                self._queues[member].popleft()
                self._counts[member][line] -= 1
            yield self._style_line(label, line, len(group))
        self._counts.clear()

    def _next_group(self) -> list[str]:
        """Return the tasks whose first line goes next.

        These are all tasks with that line, if it is at the head of all queues that hold it.
        """
        heads = {label: queue[0] for label, queue in self._queues.items() if queue}
        for line in dict.fromkeys(heads.values()):
            at_head = [label for label, head in heads.items() if head == line]
            if all(label in at_head for label in heads if self._counts[label][line] > 0):
                return at_head
        first = next(iter(heads.values()), None)
        return [label for label, head in heads.items() if head == first]
