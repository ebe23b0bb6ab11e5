"""The page of a scaling study: its tables, and charts over the number of workers."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from tfcluster.report.charts import MOST_LINES, Chart, Line
from tfcluster.report.drawings import Figure
from tfcluster.report.page import environment
from tfcluster.report.scaling_tables import cell_grid, fit_facts, prediction_grid
from tfcluster.scaling.study import Cell, Study
from tfcluster.ui.formats import format_bits
from tfcluster.ui.render import Grid


def render_study(study: Study, command: Sequence[str]) -> str:
    """Return the page of a study; `command` is the line that measured it."""
    template = environment().get_template("scaling.html")
    return template.render(
        study=study,
        command=shlex.join(command),
        cells=_unbroken(cell_grid(study)),
        facts=fit_facts(study),
        predictions=_unbroken(prediction_grid(study)),
        figures=figures_of(study),
    )


def _unbroken(grid: Grid) -> Grid:
    """Return a table whose cells are not broken between a number and its unit."""
    rows = tuple(
        tuple(cell.replace(" ", "\N{NO-BREAK SPACE}") for cell in row) for row in grid.rows
    )
    return replace(grid, rows=rows)


def figures_of(study: Study) -> list[Figure]:
    """Return the charts of a study: a line for each communication and rate."""
    found = [
        _figure(study, "Seconds of a step", lambda cell: cell.median_s),
        _figure(study, "Seconds of the collective", lambda cell: cell.collective_s),
        _figure(study, "Efficiency (1: as fast as one worker alone)", lambda cell: cell.efficiency),
    ]
    return [figure for figure in found if figure is not None]


def _figure(study: Study, title: str, value: Callable[[Cell], float]) -> Figure | None:
    """Return the chart of `value` over the workers; None without a cell of several workers."""
    alone = [cell for cell in study.cells if cell.measured.workers == 1]
    lines: dict[str, list[Cell]] = {}
    for cell in study.cells:
        if cell.measured.rate is not None:
            name = f"{cell.measured.communication}, {format_bits(cell.measured.rate)}"
            lines.setdefault(name, list(alone)).append(cell)
    shown = list(lines.items())[:MOST_LINES]
    if not shown:
        return None
    drawn = tuple(
        Line(name, tuple((float(c.measured.workers), value(c)) for c in cells), colour)
        for colour, (name, cells) in enumerate(shown)
    )
    more = list(lines)[MOST_LINES:]
    note = f"not drawn: {', '.join(more)}" if more else ""
    return Figure(title, (Chart(title, drawn, "workers", "rate"),), note)
