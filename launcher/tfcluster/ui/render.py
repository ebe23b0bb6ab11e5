"""Panels and their parts as plain data, and their rendering for a pipe or (with rich) a screen."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfcluster.ui.formats import wrap_words
from tfcluster.ui.lines import sanitize_text
from tfcluster.ui.terminal import Painted, Terminal

if TYPE_CHECKING:
    from rich.console import RenderableType

_GAP = 2
_UNLIMITED = 100_000
_TONES = {"plain": "cyan", "good": "green", "bad": "red", "warn": "yellow"}


@dataclass(frozen=True, slots=True)
class Facts:
    """Pairs of name and value, one per line."""

    pairs: tuple[tuple[str, str], ...]

    @property
    def name_width(self) -> int:
        return max((len(name) for name, _ in self.pairs), default=0)


@dataclass(frozen=True, slots=True)
class Grid:
    """A table; if it is wider than the screen, every row becomes a small list of facts."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right_aligned: frozenset[str] = frozenset()
    """Headers of the right-aligned columns."""

    def without_empty_columns(self) -> Grid:
        keep = [i for i in range(len(self.headers)) if any(row[i] for row in self.rows)]
        return Grid(
            tuple(self.headers[i] for i in keep),
            tuple(tuple(row[i] for i in keep) for row in self.rows),
            self.right_aligned,
        )


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Lines that are never wrapped, such as the end of a log."""

    lines: tuple[str, ...]


Part = str | Facts | Grid | Verbatim
"""A paragraph (wrapped), or one of the shapes above."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A titled block of parts; `tone` is plain, good, bad or warn."""

    title: str
    parts: tuple[Part, ...]
    tone: str = "plain"


def show(panel: Panel, terminal: Terminal) -> None:
    """Print the panel to stderr."""
    terminal.say(render(panel, terminal))


def render(panel: Panel, terminal: Terminal) -> str:
    """Return the panel as text for stderr: with a rule on a screen, plain text elsewhere."""
    if terminal.stderr.is_tty and not terminal.is_plain:
        colours = terminal.has_colour(terminal.stderr)
        return screen_text(panel, terminal.width, colours=colours)
    return plain_text(panel, terminal.width)


def stdout_text(panel: Panel, terminal: Terminal) -> str:
    """Return a panel as text for stdout: wrapped for a screen, unwrapped for a pipe."""
    return plain_text(panel, terminal.stdout.width() or _UNLIMITED)


def stdout_grid(grid: Grid, terminal: Terminal) -> str:
    """Return a table as text for stdout, fitted like `stdout_text`."""
    return "\n".join(part_lines(grid, terminal.stdout.width() or _UNLIMITED))


def plain_text(panel: Panel, width: int) -> str:
    """Return the panel without rule and colours, no line wider than `width` but verbatim ones."""
    lines = [sanitize_text(panel.title)]
    for part in panel.parts:
        lines += [f"  {line}".rstrip() for line in part_lines(part, width - 2)]
    return "\n".join(lines)


def part_lines(part: Part, width: int) -> list[str]:
    """Return a part as sanitized lines of at most `width` columns; longer words stay whole."""
    return [sanitize_text(line) for line in _lines(part, width)]


def _lines(part: Part, width: int) -> list[str]:
    match part:
        case Facts():
            return _facts(part, width)
        case Grid():
            return _grid(part, width)
        case Verbatim(lines):
            return list(lines)
        case text:
            return [line for row in text.split("\n") for line in wrap_words(row, width) or [""]]


def screen_text(panel: Panel, width: int, *, colours: bool) -> Painted:
    """Return the panel with a rule after its title.

    There is no border at the sides, so that paths and commands can be copied.
    """
    from rich.text import Text

    tone, title = _TONES[panel.tone], sanitize_text(panel.title)
    rule = " " + "─" * (width - len(title) - 1)
    texts = [Text.assemble((title, f"bold {tone}"), (rule, tone))]
    for part in panel.parts:
        for line in part_lines(part, width - 2):
            text = Text(f"  {line}".rstrip())
            if isinstance(part, Facts) and not line.startswith(" "):
                text.stylize("dim", 0, 2 + part.name_width)
            texts.append(text)
    return Painted(draw(texts, width, colours=colours, soft_wrap=True))


def draw(
    things: Sequence[RenderableType], width: int, *, colours: bool, soft_wrap: bool = False
) -> str:
    """Return things of rich, one below the other, as text for a screen of `width` columns.

    rich is imported only here and by callers that are about to draw: most commands never need it.
    """
    from rich.console import Console

    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=True,
        color_system="standard" if colours else None,
        no_color=not colours,
        highlight=False,
        legacy_windows=False,
    )
    for thing in things:
        console.print(thing, soft_wrap=soft_wrap)
    return file.getvalue()


def _facts(facts: Facts, width: int) -> list[str]:
    column = facts.name_width + _GAP
    lines = []
    for name, value in facts.pairs:
        rows = [
            row for text in value.split("\n") for row in wrap_words(text, width - column) or [""]
        ]
        if max(map(len, rows)) > width - column:
            # A path too long for its column gets its own lines, where it can be copied.
            rows = [row for text in value.split("\n") for row in wrap_words(text, width - 2)]
            lines += [name, *(f"  {row}" for row in rows)]
            continue
        lines.append(f"{name:{column}}{rows[0]}")
        lines += [" " * column + row for row in rows[1:]]
    return lines


def _grid(grid: Grid, width: int) -> list[str]:
    columns = list(zip(grid.headers, *grid.rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    if sum(widths) + _GAP * (len(widths) - 1) > width:
        return _stacked(grid, width)
    rights = [header in grid.right_aligned for header in grid.headers]

    def line(cells: Sequence[str]) -> str:
        shaped = (
            cell.rjust(size) if is_right else cell.ljust(size)
            for cell, size, is_right in zip(cells, widths, rights, strict=True)
        )
        return (" " * _GAP).join(shaped).rstrip()

    head = [line(grid.headers)] if any(grid.headers) else []
    return head + [line(row) for row in grid.rows]


def _stacked(grid: Grid, width: int) -> list[str]:
    """Return each row as a list: its first cell, and below it the others with their headers."""
    lines = []
    for first, *rest in grid.rows:
        lines.append(first)
        pairs = ((h, cell) for h, cell in zip(grid.headers[1:], rest, strict=True) if cell)
        lines += [f"  {line}" for line in _facts(Facts(tuple(pairs)), width - 2)]
    return lines
