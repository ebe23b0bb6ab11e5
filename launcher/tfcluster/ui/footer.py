"""Lines at the bottom of a screen that are redrawn in place while other lines scroll above them.

This is our own cursor handling instead of `rich.live.Live`, which was tried in tmux: it moves up by
the rows that it has drawn: in a terminal that became narrower they have wrapped, and parts of them
stay between the lines of the log. Ctrl-Z leaves its rows above the shell's prompt and the cursor
hidden. And what is written above it has to be drawn by rich, too; the tasks' lines are raw bytes.

The functions only compute bytes; `Terminal` writes them. The cursor rests at the end of the last
line and is never hidden: a process that is killed leaves a usable terminal behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_HOLD: Final = "\x1b[?2026h"
"""Begins synchronised output: a terminal that knows it shows all changes until `_SHOW` at once."""
_SHOW: Final = "\x1b[?2026l"
_NO_WRAP: Final = "\x1b[?7l"
"""A character that is wider than we think must not move the lines below it."""
_WRAP: Final = "\x1b[?7h"
_ERASE_REST: Final = "\x1b[K"
_ERASE_BELOW: Final = f"{_ERASE_REST}\x1b[C\x1b[J\r"
"""Erases from the beginning of a row on. In two parts: tmux takes an erasure that begins at the top
left for one of the whole screen, and scrolls what is there into its history."""

Line = tuple[str, int]
"""The text of a line, sanitized and painted, and its width in columns."""


class Footer:
    """The lines that are on the screen now; each method returns what to write."""

    def __init__(self) -> None:
        self._lines: tuple[Line, ...] = ()
        self._is_held = False

    @property
    def is_in_use(self) -> bool:
        """True if a write needs `make_room` before it."""
        return bool(self._lines) or self._is_held

    def draw(self, lines: Sequence[Line], columns: int) -> str:
        """Return what turns the footer into `lines`; only lines that have changed are written.

        `columns` is the present width of the screen.
        """
        before, after = self._lines, tuple(lines)
        if after == before:
            return ""
        self._lines, self._is_held = after, False
        if len(before) == len(after) == _rows(before, columns):
            text = _to_top(before, columns) + _changed(before, after)
        else:
            text = _erase(before, columns) + "\r\n".join(line for line, _ in after)
        return f"{_HOLD}{_NO_WRAP}{text}{_WRAP}{_SHOW}"

    def make_room(self, columns: int) -> str:
        """Return what removes the footer, so that other text can be written where it began.

        The terminal shows the change together with that text and the next `draw`.
        """
        if not self._lines:
            return self.end()
        before, self._lines, self._is_held = self._lines, (), True
        return _HOLD + _erase(before, columns)

    def end(self) -> str:
        """Return what has to follow `make_room` where no `draw` follows."""
        was_held, self._is_held = self._is_held, False
        return _SHOW if was_held else ""

    def forget(self) -> None:
        """Leave the lines where they are: something else has moved the cursor."""
        self._lines = ()


def _erase(lines: Sequence[Line], columns: int) -> str:
    return _to_top(lines, columns) + _ERASE_BELOW if lines else ""


def _changed(before: Sequence[Line], after: Sequence[Line]) -> str:
    """Return the text that rewrites the changed lines from the first to the last, going down."""
    rows = [
        "" if old == new else f"{new[0]}{_ERASE_REST}"
        for old, new in zip(before[:-1], after[:-1], strict=True)
    ]
    # The last line is always written: a typed ^C stands behind it.
    return "\r\n".join([*rows, f"{after[-1][0]}{_ERASE_REST}"])


def _to_top(lines: Sequence[Line], columns: int) -> str:
    """Return the movement from the end of `lines` to the beginning of the first one."""
    up = _rows(lines, columns) - 1
    return f"\x1b[{up}A\r" if up > 0 else "\r"


def _rows(lines: Sequence[Line], columns: int) -> int:
    """Return how many rows the lines take: a terminal that became narrower has wrapped them."""
    return sum(max(1, -(-width // max(columns, 1))) for _, width in lines)
