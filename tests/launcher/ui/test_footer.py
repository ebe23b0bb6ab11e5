"""A footer is redrawn in place: little is written, and nothing of it is left behind."""

from __future__ import annotations

import random
from typing import Any

import pyte
import pytest

from tfcluster.ui.terminal import Footer, Line


def line(text: str) -> Line:
    return text, len(text)


class TmuxScreen(pyte.HistoryScreen):  # type: ignore[misc]
    """Like tmux, keeps what is erased from the top left on (screen_write_clearendofscreen)."""

    def erase_in_display(self, how: int = 0, *args: Any, **kwargs: Any) -> None:
        if how == 0 and (self.cursor.x, self.cursor.y) == (0, 0):
            self.history.top.extend(self.buffer[row].copy() for row in range(self.lines))
        super().erase_in_display(how, *args, **kwargs)


class Screen:
    """A terminal that shows what a footer and a log write."""

    def __init__(self, columns: int = 40, rows: int = 12) -> None:
        self._screen = TmuxScreen(columns, rows, history=10_000)
        self._stream = pyte.Stream(self._screen)
        self.columns = columns

    def write(self, text: str) -> None:
        self._stream.feed(text)

    @property
    def lines(self) -> list[str]:
        past = ["".join(cell.data for cell in row.values()) for row in self._screen.history.top]
        return [row.rstrip() for row in [*past, *self._screen.display] if row.strip()]


def test_a_footer_follows_the_lines_that_scroll_above_it() -> None:
    screen, footer = Screen(), Footer()
    for number in range(40):
        screen.write(footer.make_room(40) + f"line {number}\r\n")
        screen.write(footer.draw([line("first"), line(f"second {number}")], 40))
    assert screen.lines == [*(f"line {n}" for n in range(40)), "first", "second 39"]
    screen.write(footer.make_room(40) + footer.end())
    assert screen.lines == [f"line {n}" for n in range(40)]


def test_any_sequence_of_sizes_leaves_only_the_newest_footer() -> None:
    chosen = random.Random(7)
    screen, footer, log = Screen(), Footer(), list[str]()
    shown: list[str] = []
    for number in range(500):
        if chosen.random() < 0.4:
            log.append(f"line {number} " + "x" * chosen.randrange(1, 25))
            screen.write(footer.make_room(40) + log[-1] + "\r\n")
        shown = [
            f"row {row} " + "y" * chosen.randrange(1, 20) for row in range(chosen.randrange(6))
        ]
        screen.write(footer.draw([line(text) for text in shown], 40))
    assert screen.lines == [*log, *shown]


def test_nothing_of_a_footer_at_the_top_of_a_cleared_screen_gets_into_the_history() -> None:
    screen, footer = Screen(), Footer()
    screen.write(footer.draw([line("task state"), line("worker:0 waiting")], 40))
    screen.write(footer.draw([line("three"), line("other"), line("rows")], 40))
    assert screen.lines == ["three", "other", "rows"]


def test_only_changed_lines_are_written() -> None:
    footer = Footer()
    before = [line(f"a rather long row {row}") for row in range(10)]
    whole = footer.draw(before, 80)
    assert footer.draw(before, 80) == ""
    changed = footer.draw([*before[:3], line("new"), *before[4:]], 80)
    assert "new" in changed
    assert changed.count("a rather long row") == 1, "the last line covers a typed ^C"
    assert len(changed) < len(whole) / 2


def test_a_terminal_that_became_narrower_has_wrapped_the_footer() -> None:
    footer = Footer()
    footer.draw([line("x" * 70), line("y" * 70)], 80)
    narrow = footer.draw([line("x" * 30), line("y" * 30)], 40)
    assert "\x1b[3A\r\x1b[K" in narrow, "up over four rows"


def test_a_forgotten_footer_stays_and_the_next_one_begins_at_the_cursor() -> None:
    screen, footer = Screen(), Footer()
    screen.write(footer.draw([line("before"), line("the stop")], 40))
    footer.forget()
    screen.write("\r\n$ fg\r\n")
    screen.write(footer.draw([line("after")], 40))
    assert screen.lines == ["before", "the stop", "$ fg", "after"]


@pytest.mark.parametrize("then", ["draw", "end"])
def test_a_held_screen_is_always_released(then: str) -> None:
    footer = Footer()
    footer.draw([line("x")], 40)
    held = footer.make_room(40)
    assert held.startswith("\x1b[?2026h")
    released = footer.draw([line("x")], 40) if then == "draw" else footer.end()
    assert released.endswith("\x1b[?2026l")
    assert footer.end() == ""
