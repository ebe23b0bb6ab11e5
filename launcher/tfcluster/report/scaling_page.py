"""The page of a scaling study: its tables, and charts over the number of workers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfcluster.report.charts import MOST_LINES, Chart, Line, Spot
from tfcluster.report.drawings import Figure
from tfcluster.report.page import environment
from tfcluster.report.scaling_tables import cell_grid, fit_facts, prediction_grid
from tfcluster.scaling.study import Cell, Predicted, Study
from tfcluster.ui.formats import format_bits, plural
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
    """Return the charts of a study over the workers, with a line for each communication and rate.

    A dot is a cell with its quartiles, the line its fit, a ring a prediction with its interval.
    """
    found = [
        _figure(study, "Seconds of a step", _Step),
        _figure(study, "Seconds of the collective", _Collective),
        _figure(study, "Efficiency (1: as fast as one worker alone)", _Efficiency),
    ]
    return [figure for figure in found if figure is not None]


@dataclass(frozen=True, slots=True)
class _Step:
    """The values of a chart, from the seconds of a step of a cell or of a prediction."""

    study: Study

    def of_cell(self, cell: Cell, seconds: float) -> float:
        return seconds

    def of_prediction(self, predicted: Predicted, seconds: float) -> float:
        return seconds


class _Collective(_Step):
    """The part of a step in which the workers communicate."""

    def of_cell(self, cell: Cell, seconds: float) -> float:
        return max(0.0, seconds - cell.compute_s) if cell.measured.workers > 1 else 0.0

    def of_prediction(self, predicted: Predicted, seconds: float) -> float:
        return max(0.0, seconds - self.study.fits[predicted.communication].compute_s)


class _Efficiency(_Step):
    """The speed of a worker relative to that of one worker alone."""

    def of_cell(self, cell: Cell, seconds: float) -> float:
        return cell.efficiency * cell.median_s / seconds

    def of_prediction(self, predicted: Predicted, seconds: float) -> float:
        return predicted.efficiency * predicted.prediction.seconds / seconds


def _figure(study: Study, title: str, kind: type[_Step]) -> Figure | None:
    """Return one chart; None without a cell of several workers."""
    value = kind(study)
    alone = [cell for cell in study.cells if cell.measured.workers == 1]
    cells: dict[tuple[str, float], list[Cell]] = {}
    for cell in study.cells:
        communication, rate = cell.measured.communication, cell.measured.rate
        if communication is not None and rate is not None:
            cells.setdefault((communication, rate), list(alone)).append(cell)
    names = {key: f"{key[0]}, {format_bits(key[1])}" for key in cells}
    shown = list(cells)[:MOST_LINES]
    if not shown:
        return None
    lines, spots = list[Line](), list[Spot]()
    for colour, key in enumerate(shown):
        points = (
            (float(cell.measured.workers), value.of_cell(cell, cell.fitted_s or cell.median_s))
            for cell in cells[key]
        )
        lines.append(Line(names[key], tuple(points), colour))
        spots += [_measured(cell, value, names[key], colour) for cell in cells[key]]
        spots += [
            _predicted(it, value, names[key], colour)
            for it in study.predictions
            if (it.communication, it.rate) == key
        ]
    more = [names[key] for key in list(cells)[MOST_LINES:]]
    what = "the line is the fit" if study.fits else "the line connects the medians"
    note = f"Dots are measured, with their quartiles; {what}."
    if study.predictions:
        interval = any(it.prediction.low is not None for it in study.predictions)
        note += " Rings are predictions" + (" with their 90 % intervals." if interval else ".")
    note += f" Not drawn: {', '.join(more)}." if more else ""
    return Figure(title, (Chart(title, tuple(lines), "workers", "rate", spots=tuple(spots)),), note)


def _measured(cell: Cell, value: _Step, name: str, colour: int) -> Spot:
    low, y, high = (value.of_cell(cell, s) for s in (cell.low_s, cell.median_s, cell.high_s))
    least, most = sorted((low, high))
    workers = cell.measured.workers
    text = f"{name}, {plural(workers, 'worker')}: {y:.3g}, quartiles {least:.3g} to {most:.3g}"
    return Spot(float(workers), y, least, most, text, colour)


def _predicted(it: Predicted, value: _Step, name: str, colour: int) -> Spot:
    found = it.prediction
    y = value.of_prediction(it, found.seconds)
    text = f"{name}, {plural(it.workers, 'worker')}: predicted {y:.3g}"
    least = most = y
    if found.low and found.high:  # the reciprocal of an interval that begins at 0 has no end
        ends = (value.of_prediction(it, found.low), value.of_prediction(it, found.high))
        least, most = sorted(ends)
        text += f", 90 % interval {least:.3g} to {most:.3g}"
    return Spot(float(it.workers), y, least, most, text, colour, is_predicted=True)
