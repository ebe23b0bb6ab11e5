"""Panels and their parts as plain data, and their rendering for a pipe or (with rich) a screen."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tfcluster.ui.formats import wrap_words
from tfcluster.ui.lines import sanitize_text
from tfcluster.ui.terminal import Painted, Terminal

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_Item = TypeVar("_Item")
_GAP = 2
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
    ) -> Grid:
        """Return a table of `items`, without columns in which all cells are empty or None."""
        found = {
            header: ["" if (value := cell(item)) is None else str(value) for item in items]
            for header, cell in columns.items()
        }
        kept = {header: cells for header, cells in found.items() if any(cells)}
        rows = tuple(zip(*kept.values(), strict=True))
        return cls(tuple(kept), rows, frozenset(right_aligned))


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


def stdout_text(thing: Panel | Grid, terminal: Terminal) -> str:
    """Return a panel or table as text for stdout: fitted to a screen, unlimited for a pipe."""
    width = terminal.stdout.width() or UNLIMITED
    if isinstance(thing, Panel):
        return plain_text(thing, width)
    return "\n".join(part_lines(thing, width))


def plain_text(panel: Panel, width: int) -> str:
    """Return the panel without rule and colours, no line wider than `width` but verbatim ones."""
    lines = [sanitize_text(panel.title)]
    for part in panel.parts:
        lines += [f"  {line}".rstrip() for line in part_lines(part, width - 2)]
    return "\n".join(lines)


def part_lines(part: Part, width: int) -> list[str]:
    """Return a part as sanitized lines of at most `width` columns; longer words stay whole."""
    match part:
        case Facts():
            lines = _facts(part, width)
        case Grid():
            lines = _grid(part, width)
        case Verbatim():
            lines = list(part.lines)
        case text:
            lines = wrap_words(text, width)
    return [sanitize_text(line) for line in lines]


def screen_text(panel: Panel, width: int, *, colours: bool) -> Painted:
    """Return the panel as text for a screen, see `renderable`."""
    return Painted(draw(renderable(panel, width), width, colours=colours))


def renderable(panel: Panel, width: int) -> Text:
    """Return the panel as rich shows it: with a rule after its title.

    There is no border at the sides, so that paths and commands can be copied.
    """
    from rich.text import Text

    tone, title = _TONES[panel.tone], sanitize_text(panel.title)
    rule = " " + "─" * (width - len(title) - 1)
    lines = [Text.assemble((title, f"bold {tone}"), (rule, tone), no_wrap=True, overflow="ignore")]
    for part in panel.parts:
        for line in part_lines(part, width - 2):
            lines.append(Text(f"  {line}".rstrip()))
            if isinstance(part, Facts) and not line.startswith(" "):
                lines[-1].stylize("dim", 0, 2 + part.name_width)
    return Text("\n").join(lines)


def draw(thing: RenderableType, width: int, *, colours: bool) -> str:
    """Return what rich renders as text for a screen of `width` columns.

    rich is imported only here and by callers that are about to draw: it takes 40 ms, as much as
    all else that `ps` and `status` do, which therefore show plain text.
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
    console.print(thing, crop=False)
    return file.getvalue()


def _facts(facts: Facts, width: int) -> list[str]:
    column = facts.name_width + _GAP
    lines = []
    for name, value in facts.pairs:
        rows = wrap_words(value, width - column)
        if max(map(len, rows)) > width - column:
            # A path too long for its column gets its own lines, where it can be copied.
            lines += [name, *(f"  {row}" for row in wrap_words(value, width - 2))]
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
        facts = Facts.of(*zip(grid.headers[1:], rest, strict=True))
        lines += [f"  {line}" for line in _facts(facts, width - 2)]
    return lines
