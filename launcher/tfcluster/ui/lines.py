"""Pure functions on blocks of whole lines: progress bars, prefixes, sanitizing, collapsing.

They run at C speed: no Python code per line on the hot path.

Text from tasks, hosts, daemons and specs may hold escape sequences that write the clipboard
(OSC 52), move the cursor or rename the window. The `harmless` functions keep them from a screen:
`MergedLogs` calls them for the tasks' lines, `Terminal` for everything else.
"""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

_LINE_ENDS = re.compile(rb"\r+\n")
_OVERWRITTEN = re.compile(rb"(?m)^[^\n]*\r")
_PLAIN = bytes((0x09, 0x0A, *range(0x20, 0x7F)))
"""What most lines are made of: nothing of it can harm a screen."""
_COLOUR = r"\[[0-9;:]*m"
_SEQUENCE = r"(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))"
_CONTROLS = (
    "\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f"  # but tab, newline and escape
    "\u202a-\u202e\u2066-\u2069"  # text direction overrides
)
_RAW_IN_JSON = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What `json.dumps` without `ensure_ascii` leaves as it is, newlines between values apart."""
_SEQUENCES = {
    True: re.compile(f"\x1b(?!{_COLOUR}){_SEQUENCE}"),
    False: re.compile(f"\x1b{_SEQUENCE}"),
}
"""Those that go, by whether colours stay: they are the only ones that a screen may get."""
_CHARACTERS = {
    True: re.compile(f"\x1b(?!{_COLOUR})|[{_CONTROLS}]"),
    False: re.compile(f"[\x1b{_CONTROLS}]"),
}


def latest_states(block: bytes) -> bytes:
    """Of every line only what stands after its last carriage return: a progress bar's last state.

    `block` is whole lines; a carriage return just before the newline is part of the line's end.
    """
    if b"\r" not in block:
        return block
    return _OVERWRITTEN.sub(b"", _LINE_ENDS.sub(b"\n", block))


def latest_state(partial: bytes) -> bytes:
    """The same for a line that has no newline yet."""
    return partial.rstrip(b"\r").rpartition(b"\r")[2]


def attribute(block: bytes, prefix: bytes) -> bytes:
    """`prefix` before every line of `block` (whole lines, at least one)."""
    return b"".join((prefix, block[:-1].replace(b"\n", b"\n" + prefix), b"\n"))


def harmless(block: bytes, *, colours: bool) -> bytes:
    """`block` as a terminal may get it: nothing moves the cursor, rings, or renames the window.

    Colour sequences stay where `colours`, and end with their line; other sequences go, other
    control characters become their pictures (␀ ␇ ␛), what is no UTF-8 becomes �.
    """
    if not block.translate(None, _PLAIN):
        return block
    return _safe(block.decode("utf-8", "replace"), colours=colours).encode()


def harmless_text(text: str) -> str:
    """The same for a text that nobody else may colour: an exception's message, a metric's name."""
    return _safe(text, colours=False)


def harmless_but_colours(text: str) -> str:
    """The same for a text that we have coloured."""
    return _CHARACTERS[True].sub(_picture, _SEQUENCES[True].sub("", text))


def escaped_json(text: str) -> str:
    """JSON of the same value, in which control characters and halves of characters are escaped."""
    return _RAW_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _safe(text: str, *, colours: bool) -> str:
    text = _CHARACTERS[colours].sub(_picture, _SEQUENCES[colours].sub("", text))
    # An escape that is still there begins a colour.
    return text.replace("\n", "\x1b[0m\n") if "\x1b" in text else text


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else "�"


def matching(block: bytes, pattern: re.Pattern[bytes]) -> bytes:
    """The lines of `block` in which `pattern` is found."""
    if pattern.search(block) is None:
        return b""
    found = [line + b"\n" for line in block[:-1].split(b"\n") if pattern.search(line)]
    return b"".join(found)


WINDOW_S = 0.4
"""How long a line waits for its likes from other tasks."""
LINES_AT_MOST = 20_000


class Collapser:
    """Per task a short queue of lines; lines at the heads that are alike leave together.

    The order of every task's own lines is kept.
    """

    def __init__(
        self,
        dress: Callable[[str, bytes, int], bytes],
        *,
        window_s: float = WINDOW_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dress = dress
        self._window_s, self._clock = window_s, clock
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
            self._waiting_since = self._clock()

    def due(self) -> Iterator[bytes]:
        """The lines whose window is over; all of them when very many wait."""
        waited = 0.0 if self._waiting_since is None else self._clock() - self._waiting_since
        if waited >= self._window_s or self._size > LINES_AT_MOST:
            yield from self.rest()

    def rest(self) -> Iterator[bytes]:
        """All lines that wait."""
        self._waiting_since, self._size = None, 0
        while group := self._next_group():
            label, line = group[0], self._queues[group[0]][0]
            for member in group:
                self._queues[member].popleft()
                self._counts[member][line] -= 1
            yield self._dress(label, line, len(group))
        self._counts.clear()

    def _next_group(self) -> list[str]:
        """The tasks whose first line goes next: all that have it, if it is first in all of them."""
        heads = {label: queue[0] for label, queue in self._queues.items() if queue}
        for line in dict.fromkeys(heads.values()):
            at_head = [label for label, head in heads.items() if head == line]
            if all(label in at_head for label in heads if self._counts[label][line] > 0):
                return at_head
        first = next(iter(heads.values()), None)
        return [label for label, head in heads.items() if head == first]
