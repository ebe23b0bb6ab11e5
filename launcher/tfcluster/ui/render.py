"""Panels and their parts as plain data, laid out for a pipe and, in colour, for a screen.

The layout is ours: rich breaks or cuts off words that are wider than a column of its tables, and
paths and commands have to stay whole to be copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from rich.text import Text

from tfcluster.ui.formats import cut_middle, cut_to_columns, wrap_words
from tfcluster.ui.lines import sanitize_text
from tfcluster.ui.terminal import Painted, Stream, Terminal, draw

_Item = TypeVar("_Item")
GAP = 2
UNLIMITED = 100_000
"""The width in columns of what is not a screen."""
_LEAST_CUT = 20
"""Columns below which a text cut to fit is useless."""
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
    """A table. Where it is too wide for a screen, it is `fitted`.

    If that is not enough, every row becomes a small list of facts.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right_aligned: frozenset[str] = frozenset()
    """Headers of the right-aligned columns."""
    dropped_first: tuple[str, ...] = ()
    """Headers of the columns that a narrow screen does without, the least important one first."""
    cut: str = ""
    """The header of the column whose texts may be cut at their end."""
    styles: tuple[tuple[str, ...], ...] = ()
    """The style of each cell of `rows`, such as ``bold red``; empty where no cell has one."""

    @classmethod
    def of(
        cls,
        items: Sequence[_Item],
        columns: Mapping[str, Callable[[_Item], object]],
        right_aligned: Iterable[str] = (),
        *,
        dropped_first: Iterable[str] = (),
        cut: str = "",
        styles: Mapping[str, Callable[[_Item], str]] | None = None,
    ) -> Grid:
        """Return a table of `items`, without columns in which all cells are empty or None.

        `styles`: header → the style of an item's cell.
        """
        cells_of = {
            header: ["" if (value := cell(item)) is None else str(value) for item in items]
            for header, cell in columns.items()
        }
        kept = {header: cells for header, cells in cells_of.items() if any(cells)}
        style_of = {header: (styles or {}).get(header) for header in kept}
        return cls(
            tuple(kept),
            tuple(zip(*kept.values(), strict=True)),
            frozenset(right_aligned),
            tuple(dropped_first),
            cut,
            tuple(tuple(of(item) if of else "" for of in style_of.values()) for item in items),
        )

    def fitted(self, width: int) -> Grid:
        """Return the table in `width` columns, if it can be made to fit.

        Columns are left out in the order of `dropped_first`; then `cut` gets what room there is;
        then the texts of the first column are cut in their middle.
        """
        grid = self
        for header in self.dropped_first:
            if grid._room_for(grid.cut, width) >= grid._least(grid.cut):
                break
            grid = grid._without(header)
        if self.cut:
            grid = grid._shortened(self.cut, width, cut_to_columns)
            grid = grid._shortened(self.headers[0], width, cut_middle)
        return grid

    def _room_for(self, header: str, width: int) -> int:
        """Return how many of `width` columns the others leave for the column of `header`."""
        return width - self.width + self._width_of(header)

    def _least(self, header: str) -> int:
        return min(self._width_of(header), _LEAST_CUT)

    def _width_of(self, header: str) -> int:
        return self.widths[self.headers.index(header)] if header in self.headers else 0

    def _without(self, header: str) -> Grid:
        if header not in self.headers:
            return self
        place = self.headers.index(header)

        def rest(cells: tuple[str, ...]) -> tuple[str, ...]:
            return cells[:place] + cells[place + 1 :]

        rows, styles = tuple(map(rest, self.rows)), tuple(map(rest, self.styles))
        return replace(self, headers=rest(self.headers), rows=rows, styles=styles)

    def _shortened(self, header: str, width: int, cut: Callable[[str, int], str]) -> Grid:
        """Return the table with the texts of one column cut to the room in `width`."""
        room = max(self._room_for(header, width), self._least(header))
        if header not in self.headers or room >= self._width_of(header):
            return self
        place = self.headers.index(header)
        rows = ((*row[:place], cut(row[place], room), *row[place + 1 :]) for row in self.rows)
        return replace(self, rows=tuple(rows))

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
    if not terminal.has_colour(terminal.stdout):
        return "\n".join(part_lines(thing, width))
    return draw(Text("\n", no_wrap=True).join(part_texts(thing, width)), width, colours=True)


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
            lines += [Text("  ").append_text(line) for line in part_texts(part, width - 2)]
            continue
        for has_name, line in _facts(part, width - 2):
            lines.append(Text(f"  {sanitize_text(line)}".rstrip()))
            if has_name:
                lines[-1].stylize("dim", 0, 2 + part.name_width)
    return draw(Text("\n", no_wrap=True).join(lines), width, colours=colours)


def part_lines(part: Part, width: int) -> list[str]:
    """Return a part as sanitized lines of at most `width` columns; longer words stay whole."""
    return [line.plain for line in part_texts(part, width)]


def part_texts(part: Part, width: int) -> list[Text]:
    """Return the lines of `part_lines` with the styles of their cells."""
    match part:
        case Facts():
            lines = [line for _, line in _facts(part, width)]
        case Grid():
            return _grid(part, width)
        case Verbatim():
            lines = list(part.lines)
        case text:
            lines = wrap_words(text, width)
    return [Text(sanitize_text(line)) for line in lines]


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


def _grid(grid: Grid, width: int) -> list[Text]:
    rows = tuple(tuple(map(sanitize_text, row)) for row in grid.rows)
    whole = replace(grid, headers=tuple(map(sanitize_text, grid.headers)), rows=rows)
    grid = whole.fitted(width) if whole.width > width else whole
    if grid.width > width:
        return [*map(Text, _stacked(whole, width))]
    widths = grid.widths

    def line(cells: Sequence[str], styles: Sequence[str]) -> Text:
        shaped = [
            cell.rjust(size) if header in grid.right_aligned else cell.ljust(size)
            for header, cell, size in zip(grid.headers, cells, widths, strict=True)
        ]
        text = Text((" " * GAP).join(shaped))
        for place, style in enumerate(styles):
            start = sum(map(len, shaped[:place])) + GAP * place
            text.stylize(style, start, start + len(shaped[place].rstrip()))
        text.rstrip()
        return text

    head = [line(grid.headers, ())] if any(grid.headers) else []
    styles = grid.styles or ((),) * len(grid.rows)
    return head + [line(*row) for row in zip(grid.rows, styles, strict=True)]


def _stacked(grid: Grid, width: int) -> list[str]:
    """Return each row as a list: its first cell, and below it the others with their headers.

    A first cell that is a number has its header, too.
    """
    lines = []
    title = f"{grid.headers[0]} " if grid.headers[0] in grid.right_aligned else ""
    for first, *rest in grid.rows:
        lines.append(f"{title}{first}")
        facts = Facts.of(*zip(grid.headers[1:], rest, strict=True))
        lines += [f"  {line}" for _, line in _facts(facts, width - 2)]
    return lines
