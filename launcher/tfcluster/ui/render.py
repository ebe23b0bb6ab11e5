"""Panels and their parts as plain data, laid out for a pipe and, in colour, for a screen.

The layout is ours: rich breaks or cuts off words that are wider than a column of its tables, and
paths and commands have to stay whole to be copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.text import Text

from tfcluster.ui.formats import wrap_words
from tfcluster.ui.lines import sanitize_text
from tfcluster.ui.terminal import Painted, Stream, Terminal, draw

_Item = TypeVar("_Item")
GAP = 2
UNLIMITED = 100_000
"""The width in columns of what is not a screen."""
_TONES = {"plain": "cyan", "good": "green", "bad": "red", "warn": "yellow"}


@dataclass(frozen=True, slots=True)
class Facts:
    """Pairs of name and value, one per line."""

    pairs: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, *pairs: tuple[str, str | None]) -> Facts:
        """Return `pairs` without those that have no value."""
        return cls(tuple((name, value) for name, value in pairs if value))

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

    @classmethod
    def of(
        cls,
        items: Sequence[_Item],
        columns: Mapping[str, Callable[[_Item], object]],
        right_aligned: Iterable[str] = (),
        *,
        width: int | None = None,
        dropped_first: Sequence[str] = (),
    ) -> Grid:
        """Return a table of `items`, without columns in which all cells are empty or None.

        As long as it is wider than `width`, columns are left out in the order of `dropped_first`.
        """
        cells_of = {
            header: ["" if (value := cell(item)) is None else str(value) for item in items]
            for header, cell in columns.items()
        }
        kept = {header: cells for header, cells in cells_of.items() if any(cells)}
        for header in (*dropped_first, ""):
            rows = tuple(zip(*kept.values(), strict=True))
            grid = cls(tuple(kept), rows, frozenset(right_aligned))
            if width is None or grid.width <= width:
                break
            kept.pop(header, None)
        return grid

    @property
    def widths(self) -> list[int]:
        """The columns of the screen that each column takes."""
        return [max(map(len, column)) for column in zip(self.headers, *self.rows, strict=True)]

    @property
    def width(self) -> int:
        """The columns of the screen that the table takes."""
        return sum(self.widths) + GAP * max(len(self.headers) - 1, 0)


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
    return _render(panel, terminal, terminal.stderr, terminal.width)


def stdout_text(thing: Panel | Part, terminal: Terminal) -> str:
    """Return a panel or a part as text for stdout: fitted to a screen, unlimited for a pipe."""
    width = terminal.stdout.width() or UNLIMITED
    if isinstance(thing, Panel):
        return _render(thing, terminal, terminal.stdout, width)
    return "\n".join(part_lines(thing, width))


def _render(panel: Panel, terminal: Terminal, stream: Stream, width: int) -> str:
    if stream.is_tty and not terminal.is_plain:
        return screen_text(panel, width, colours=terminal.has_colour(stream))
    return plain_text(panel, width)


def plain_text(panel: Panel, width: int) -> str:
    """Return the panel without rule and colours, no line wider than `width` but verbatim ones."""
    lines = [sanitize_text(panel.title)]
    for part in panel.parts:
        lines += [f"  {line}".rstrip() for line in part_lines(part, width - 2)]
    return "\n".join(lines)


def screen_text(panel: Panel, width: int, *, colours: bool) -> Painted:
    """Return the panel for a screen: with a rule after its title, and dim names of facts.

    There is no border at the sides, so that paths and commands can be copied.
    """
    tone, title = _TONES[panel.tone], sanitize_text(panel.title)
    rule = " " + "─" * (width - len(title) - 1)
    lines = [Text.assemble((title, f"bold {tone}"), (rule, tone))]
    for part in panel.parts:
        if not isinstance(part, Facts):
            lines += [Text(f"  {line}".rstrip()) for line in part_lines(part, width - 2)]
            continue
        for has_name, line in _facts(part, width - 2):
            lines.append(Text(f"  {sanitize_text(line)}".rstrip()))
            if has_name:
                lines[-1].stylize("dim", 0, 2 + part.name_width)
    return draw(Text("\n", no_wrap=True).join(lines), width, colours=colours)


def part_lines(part: Part, width: int) -> list[str]:
    """Return a part as sanitized lines of at most `width` columns; longer words stay whole."""
    match part:
        case Facts():
            lines = [line for _, line in _facts(part, width)]
        case Grid():
            lines = _grid(part, width)
        case Verbatim():
            lines = list(part.lines)
        case text:
            lines = wrap_words(text, width)
    return [sanitize_text(line) for line in lines]


def _facts(facts: Facts, width: int) -> Iterator[tuple[bool, str]]:
    """Yield each line, and whether it begins with the name of a fact."""
    column = facts.name_width + GAP
    for name, value in facts.pairs:
        first, *others = wrap_words(value, width - column)
        if max(map(len, (first, *others))) > width - column:
            # A path too long for its column gets its own lines, where it can be copied.
            yield True, name
            yield from ((False, f"  {row}") for row in wrap_words(value, width - 2))
        else:
            yield True, f"{name:{column}}{first}"
            yield from ((False, " " * column + row) for row in others)


def _grid(grid: Grid, width: int) -> list[str]:
    if grid.width > width:
        return _stacked(grid, width)
    widths = grid.widths

    def line(cells: Sequence[str]) -> str:
        shaped = (
            cell.rjust(size) if header in grid.right_aligned else cell.ljust(size)
            for header, cell, size in zip(grid.headers, cells, widths, strict=True)
        )
        return (" " * GAP).join(shaped).rstrip()

    head = [grid.headers] if any(grid.headers) else []
    return [line(cells) for cells in (*head, *grid.rows)]


def _stacked(grid: Grid, width: int) -> list[str]:
    """Return each row as a list: its first cell, and below it the others with their headers."""
    lines = []
    for first, *rest in grid.rows:
        lines.append(first)
        facts = Facts.of(*zip(grid.headers[1:], rest, strict=True))
        lines += [f"  {line}" for _, line in _facts(facts, width - 2)]
    return lines
