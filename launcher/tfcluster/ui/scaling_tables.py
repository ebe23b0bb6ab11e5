"""A scaling study as text: tables of cells and predictions, and the fits in words."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from tfcluster.errors import join_first
from tfcluster.scaling.study import PARTS, Cell, Predicted, Study
from tfcluster.ui.formats import (
    format_bits,
    format_bytes,
    format_known,
    format_large_rate,
    format_ms,
)
from tfcluster.ui.render import Facts, Grid, Part

_RIGHT = (
    *("workers", "step", "quartiles", "compute", "collective", "of ring", "examples/s"),
    *("efficiency", "fit", "error", "90 % interval", "mean step", *PARTS),
)


_CELL: dict[str, Callable[[Cell], object]] = {
    "workers": lambda cell: f"{cell.measured.workers}{' !' if cell.is_crowded else ''}",
    "communication": lambda cell: cell.measured.communication,
    "rate": lambda cell: format_known(cell.measured.rate, format_bits),
}
"""The columns that name a cell."""


def study_parts(study: Study) -> list[Part]:
    """Return everything that the command prints."""
    parts: list[Part] = [cell_grid(study)]
    if not study.is_simulated:
        parts += ["a step consists of, as a mean over the workers:", part_grid(study)]
    parts.append(fit_facts(study))
    if study.predictions:
        parts += ["predicted for hosts with cores of their own:", prediction_grid(study)]
    return [*parts, *study.notes]


def describe_study(study: Study, command: Sequence[str]) -> dict[str, Any]:
    """Return the data of a study's page; `command` is the line that measured it."""
    return {
        "study": study.to_json(),
        "place": _place(study),
        "command": shlex.join(command),
        "cells": _grid_json(cell_grid(study)),
        "parts": _grid_json(part_grid(study)),
        "fits": fit_facts(study).pairs,
        "predictions": _grid_json(prediction_grid(study)),
    }


def _place(study: Study) -> str:
    """Return where the study was measured: ``ssh: 10.0.0.1, 10.0.0.2``."""
    if study.is_simulated:
        return f"{study.cores} cores of one machine, on simulated networks"
    if study.cores is not None:
        return f"{study.backend}: {study.cores} cores of one machine"
    nodes = max((cell.measured.nodes for cell in study.cells), key=len)
    return f"{study.backend}: {join_first(nodes)}"


def _grid_json(grid: Grid) -> dict[str, Any]:
    return {
        "headers": grid.headers,
        "rows": grid.rows,
        "right_aligned": sorted(grid.right_aligned),
    }


def cell_grid(study: Study) -> Grid:
    """Return the table of measured cells."""
    columns: dict[str, Callable[[Cell], object]] = {
        **_CELL,
        "step": lambda cell: format_ms(cell.median_s),
        "quartiles": lambda cell: _range(cell.low_s, cell.high_s),
    }
    if study.is_simulated:
        columns |= {
            "compute": lambda cell: format_known(cell.compute_s, format_ms),
            "collective": lambda cell: (
                format_known(cell.collective_s, format_ms) if cell.measured.workers > 1 else None
            ),
            "of ring": lambda cell: format_known(cell.of_ring, "{:.2f}".format),
        }
    columns |= {
        "examples/s": lambda cell: format_known(cell.examples_per_second, format_large_rate),
        "efficiency": lambda cell: f"{cell.efficiency:.0%}",
        "fit": lambda cell: format_known(cell.fitted_s, format_ms),
        "error": lambda cell: _error(cell, study),
    }
    return Grid.of(study.cells, columns, _RIGHT)


def part_grid(study: Study) -> Grid:
    """Return the table of what a step consists of."""
    columns = {name: partial(_part, name) for name in PARTS}
    return Grid.of(study.cells, {**_CELL, "mean step": _mean_step, **columns}, _RIGHT)


def _mean_step(cell: Cell) -> str:
    """Return the sum of the parts, which may be far above the median."""
    parts = cell.measured.parts
    return "…" if parts is None else format_ms(sum(parts.values()))


def _part(name: str, cell: Cell) -> str:
    """Return the time of a part of the step; ``…`` if the workers have not reported it."""
    parts = cell.measured.parts
    return "…" if parts is None else format_ms(parts.get(name, 0.0))


def prediction_grid(study: Study) -> Grid:
    """Return the table of predictions for hosts with cores of their own."""
    columns = {
        "workers": lambda predicted: predicted.workers,
        "communication": lambda predicted: predicted.communication,
        "rate": lambda predicted: format_bits(predicted.rate),
        "step": lambda predicted: format_ms(predicted.prediction.seconds),
        "90 % interval": _interval,
        "efficiency": lambda predicted: f"{predicted.efficiency:.0%}",
    }
    return Grid.of(study.predictions, columns, _RIGHT)


def fit_facts(study: Study) -> Facts:
    """Return the parameters of the fits in words."""
    volume = format_known(study.gradient_bytes, format_bytes)
    held_out = format_known(study.held_out_error, "median error {:.1%} (marked *)".format)
    fits = [(f"fit of {name}", ", ".join(_fit_words(study, name))) for name in study.fits]
    return Facts.of(("gradients", volume), *fits, ("held-out cells", held_out))


def _fit_words(study: Study, name: str) -> Iterator[str]:
    fit, reached = study.fits[name], study.reached(name)
    yield f"compute {format_ms(fit.compute_s)}"
    yield f"latency {format_ms(fit.latency_s)} a message"
    yield f"{format_bytes(fit.bits / 8)} to send" + (
        f" ({reached:.0%} of the rate reached)" if reached is not None else ""
    )
    if fit.spread is not None:
        yield f"residuals {fit.spread:.1%}"


def _error(cell: Cell, study: Study) -> str | None:
    """Return the error of a fit or a prediction; a fit without freedom has none to show."""
    if cell.error is None or not (cell.is_held_out or any(f.spread for f in study.fits.values())):
        return None
    return f"{cell.error:+.1%}{' *' if cell.is_held_out else ''}"


def _interval(predicted: Predicted) -> str | None:
    low, high = predicted.prediction.low, predicted.prediction.high
    return None if low is None or high is None else _range(low, high)


def _range(low_s: float, high_s: float) -> str:
    return f"{format_ms(low_s)} – {format_ms(high_s)}"
