"""A scaling study: from the measured steps of each cell to its numbers, the fit, predictions; pure.

A cell is a number of workers, a communication and a rate of the network. One worker sends nothing,
so it has one cell, with which all others are compared. On the real cluster the rate is unknown:
there is no model, and the tasks measure what a step consists of.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

from tfcluster.scaling.ring_fit import LEVEL, Fit, Point, Prediction, fit, ring_share

_FULL: Final = 0.9
"""The part of the cores in use from which workers probably wait for a core."""
_NEGLIGIBLE: Final = 0.1
"""The part of a step up to which its compute time may be wrong."""
_BITS: Final = 8
PARTS: Final = ("input", "compute", "waiting", "transfer", "callbacks", "other")
"""The parts of a step, as in the event ``step_times``."""
_IN_JSON: Final = (
    *("compute_s", "collective_s", "ring_s", "examples_per_second", "efficiency", "load"),
    *("is_crowded", "is_held_out", "fitted_s", "error"),
)
"""The attributes of a cell that its JSON has as they are."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The timed steps of one cell."""

    workers: int
    communication: str | None
    """The algorithm; None for one worker and for the spec's own."""
    rate: float | None
    """Bits per second of every port; None for one worker and on the real cluster."""
    step_s: tuple[float, ...]
    """Seconds of each step, without the first ones."""
    gradient_bytes: int | None = None
    """The bytes of the gradients that each step sums; None if the job does not report them."""
    global_batch: float | None = None
    """Examples of a step over all workers; None if unknown."""
    busy_cores: float | None = None
    """The processor time per second that one worker used meanwhile."""
    parts: Mapping[str, float] | None = None
    """Part of `PARTS` → seconds of a step, as a mean over the workers; None if not reported."""
    nodes: tuple[str, ...] = ()
    """The nodes that the workers ran on."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The numbers of one cell; times are seconds per step."""

    measured: Measured
    median_s: float
    low_s: float
    high_s: float
    """The quartiles of the steps."""
    load: float
    """The compute time as a multiple of that of one worker alone."""
    compute_s: float | None
    """The time of one worker alone, times `load`; on the real cluster what the workers measured."""
    collective_s: float | None
    """The rest of the step; on the real cluster the waiting and the transfer."""
    ring_s: float | None
    """The least time of a ring: 2(N-1)/N · volume / rate; None if the volume is unknown."""
    efficiency: float
    """The examples per second and worker, relative to one worker alone."""
    is_crowded: bool
    """True if the step includes waiting for a core, so that it cannot be believed."""
    fitted_s: float | None = None
    is_held_out: bool = False
    """True if the fit does not use the cell: it tests the prediction."""

    @property
    def error(self) -> float | None:
        """The relative error of the fit or the prediction: positive if it is too long."""
        return None if self.fitted_s is None else self.fitted_s / self.median_s - 1

    @property
    def of_ring(self) -> float | None:
        """The collective time as a multiple of the ring's least time."""
        if self.collective_s is None or not self.ring_s:
            return None
        return self.collective_s / self.ring_s

    @property
    def examples_per_second(self) -> float | None:
        batch = self.measured.global_batch
        return None if batch is None else batch / self.median_s

    def to_json(self) -> dict[str, Any]:
        """Return the numbers; times in seconds, rates in bits per second."""
        measured = ("workers", "communication", "rate", "nodes", "busy_cores", "parts")
        return {
            **{name: getattr(self.measured, name) for name in measured},
            "steps": len(self.measured.step_s),
            "step_s": self.median_s,
            "quartiles_s": [self.low_s, self.high_s],
            **{name: getattr(self, name) for name in _IN_JSON},
        }


@dataclass(frozen=True, slots=True)
class Predicted:
    """The prediction for hosts that have their own cores."""

    workers: int
    communication: str
    rate: float
    prediction: Prediction
    efficiency: float

    def to_json(self) -> dict[str, Any]:
        predicted = self.prediction
        return {
            "workers": self.workers,
            "communication": self.communication,
            "rate": self.rate,
            "step_s": predicted.seconds,
            "interval_s": None if predicted.low is None else [predicted.low, predicted.high],
            "efficiency": self.efficiency,
        }


@dataclass(frozen=True, slots=True)
class Study:
    """Everything that a study found."""

    name: str
    backend: str
    cores: int | None
    """The cores of the machine that all workers share; None for several machines."""
    gradient_bytes: int | None
    cells: tuple[Cell, ...]
    fits: Mapping[str, Fit]
    """Communication → the fit of its cells."""
    predictions: tuple[Predicted, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_simulated(self) -> bool:
        """True if the networks were simulated, with known rates."""
        return _is_simulated(cell.measured for cell in self.cells)

    @property
    def held_out_error(self) -> float | None:
        """The median size of the relative errors of cells that the fit does not use."""
        errors = [abs(c.error) for c in self.cells if c.is_held_out and c.error is not None]
        return statistics.median(errors) if errors else None

    def reached(self, communication: str) -> float | None:
        """Return the part of the rate that the fit's transfers reach; None if unknown."""
        fitted = self.fits.get(communication)
        if fitted is None or not fitted.bits or self.gradient_bytes is None:
            return None
        return self.gradient_bytes * _BITS / fitted.bits

    def to_json(self) -> dict[str, Any]:
        """Return the study for JSON: times in seconds, rates in bits per second."""
        return {
            "name": self.name,
            "backend": self.backend,
            "is_simulated": self.is_simulated,
            "cores": self.cores,
            "gradient_bytes": self.gradient_bytes,
            "cells": [cell.to_json() for cell in self.cells],
            "fits": {
                name: {
                    "compute_s": fitted.compute_s,
                    "latency_s": fitted.latency_s,
                    "effective_bits": fitted.bits,
                    "reached_rate": self.reached(name),
                    "spread": fitted.spread,
                    "degrees_of_freedom": fitted.freedom,
                    "is_determined": fitted.is_determined,
                    "interval": LEVEL,
                }
                for name, fitted in self.fits.items()
            },
            "predictions": [predicted.to_json() for predicted in self.predictions],
            "held_out_error": self.held_out_error,
            "notes": list(self.notes),
        }


def analyse(
    name: str,
    measured: Sequence[Measured],
    *,
    backend: str,
    cores: int | None,
    predict: Sequence[int] = (),
    notes: Sequence[str] = (),
) -> Study:
    """Return the study of the measured cells, one of which has one worker.

    `cores`: those of the machine that all workers share. Cells of as many workers as `predict`
    names are not used for the fit: they test its predictions. `notes` come before the study's own.
    """
    alone = next(cell for cell in measured if cell.workers == 1)
    cells = [_cell(cell, alone, cores, cell.workers in predict) for cell in measured]
    if not _is_simulated(measured):
        cells = [_with_measured_parts(cell) for cell in cells]
    volumes = [cell.gradient_bytes for cell in measured if cell.gradient_bytes is not None]
    fits, fitted, predictions = {}, list(cells), list[Predicted]()
    with_rate = [c.communication for c in measured if c.communication and c.rate]
    for communication in dict.fromkeys(with_rate):
        used = [c for c in cells if c.measured.communication in (None, communication)]
        points = [
            Point(cell.measured.workers, cell.measured.rate, cell.median_s, cell.load)
            for cell in used
            if not cell.is_held_out
        ]
        if (of_used := fit(points)) is not None:
            fits[communication] = of_used
            fitted = [_with_fit(cell, communication, of_used) for cell in fitted]
            rates = dict.fromkeys(c.measured.rate for c in used if c.measured.rate is not None)
            predictions += _predict(communication, of_used, predict, tuple(rates))
    study = Study(
        name=name,
        backend=backend,
        cores=cores,
        gradient_bytes=volumes[0] if volumes else None,
        cells=tuple(fitted),
        fits=fits,
        predictions=tuple(predictions),
    )
    return replace(study, notes=(*notes, *_notes(study, alone), *_notes_of_fits(study)))


def _is_simulated(measured: Iterable[Measured]) -> bool:
    return any(cell.rate is not None for cell in measured)


def _with_measured_parts(cell: Cell) -> Cell:
    """Return the cell with what its workers have measured, in place of what one worker needs."""
    if (parts := cell.measured.parts) is None:
        return replace(cell, compute_s=None, collective_s=None)
    collective = sum(parts.get(name, 0.0) for name in ("waiting", "transfer"))
    return replace(cell, compute_s=parts.get("compute"), collective_s=collective)


def _cell(measured: Measured, alone: Measured, cores: int | None, is_held_out: bool) -> Cell:
    median, low, high = statistics.median(measured.step_s), measured.step_s[0], measured.step_s[0]
    if len(measured.step_s) > 1:
        low, _, high = statistics.quantiles(measured.step_s, n=4, method="inclusive")
    load = _load(measured, alone, cores)
    alone_s = statistics.median(alone.step_s)
    compute = alone_s * load
    volume = measured.gradient_bytes
    ring = None
    if volume is not None and measured.rate is not None:
        ring = ring_share(measured.workers) * volume * _BITS / measured.rate
    return Cell(
        measured=measured,
        median_s=median,
        low_s=low,
        high_s=high,
        load=load,
        compute_s=min(compute, median) if measured.workers == 1 else compute,
        collective_s=max(0.0, median - compute) if measured.workers > 1 else 0.0,
        ring_s=ring,
        efficiency=_batch_ratio(measured, alone) * alone_s / median,
        is_crowded=_is_crowded(measured, alone, cores, compute / median),
        is_held_out=is_held_out and measured.workers > 1,
    )


def _load(measured: Measured, alone: Measured, cores: int | None) -> float:
    """Return the compute time of a cell as a multiple of that of one worker alone.

    It grows with the batch of a worker, and where the workers need more cores than there are: a
    worker needs those that it keeps busy alone, and a core that is shared serves each in turn.
    """
    crowding = 1.0 if cores is None else max(1.0, _needed_cores(measured, alone) / cores)
    return crowding * _batch_ratio(measured, alone)


def _needed_cores(measured: Measured, alone: Measured) -> float:
    """Return the cores that the workers of a cell would keep busy if each had its own."""
    return measured.workers * (alone.busy_cores if alone.busy_cores is not None else 1.0)


def _batch_ratio(measured: Measured, alone: Measured) -> float:
    """Return the examples of a step and worker relative to one worker alone; 1 if unknown."""
    if not measured.global_batch or not alone.global_batch:
        return 1.0
    return measured.global_batch / measured.workers / alone.global_batch


def _is_crowded(
    measured: Measured, alone: Measured, cores: int | None, compute_part: float
) -> bool:
    """Return whether the workers keep nearly all cores busy, or wait for one while they compute.

    The latter does not matter where the computation is a small part of the step.
    """
    if measured.workers == 1 or cores is None:
        return False
    is_full = measured.workers * (measured.busy_cores or 0.0) >= _FULL * cores
    return is_full or (_needed_cores(measured, alone) > cores and compute_part > _NEGLIGIBLE)


def _with_fit(cell: Cell, communication: str, fitted: Fit) -> Cell:
    measured = cell.measured
    if measured.communication not in (None, communication) or cell.fitted_s is not None:
        return cell
    return replace(cell, fitted_s=fitted.seconds(measured.workers, measured.rate, cell.load))


def _predict(
    communication: str, fitted: Fit, workers: Sequence[int], rates: Sequence[float]
) -> Iterator[Predicted]:
    for count, rate in product(workers, rates):
        prediction = fitted.predict(count, rate)
        efficiency = fitted.compute_s / prediction.seconds if prediction.seconds else math.nan
        yield Predicted(count, communication, rate, prediction, efficiency)


def _notes(study: Study, alone: Measured) -> Iterator[str]:
    """Yield what a reader must know to judge the numbers."""
    sent = [cell for cell in study.cells if cell.measured.workers > 1]
    if study.gradient_bytes is None and study.is_simulated:
        yield (
            "the job does not report the size of its gradients, so the ring's least time is"
            " unknown: call tfcluster_workers.reporting.gradients(variables)"
        )
    if crowded := sorted({cell.measured.workers for cell in sent if cell.is_crowded}):
        counts = ", ".join(map(str, crowded))
        yield (
            f"{counts} workers need more than the {study.cores} cores they share (marked !): their"
            " steps include waiting for a core, as on no cluster of hosts"
        )
    if sent and alone.global_batch is None:
        what = "the compute time is that of one worker" if study.is_simulated else "efficiency is"
        yield f"the batch is unknown: {what}, as if each worker had the same batch"
    elif any(abs(_batch_ratio(cell.measured, alone) - 1) > 0.01 for cell in sent):
        yield "the batch of a worker depends on the number of workers: " + (
            "the compute time of one worker is scaled with it"
            if study.is_simulated
            else "efficiency compares the examples per second"
        )


def _notes_of_fits(study: Study) -> Iterator[str]:
    """Yield what the cells cannot tell."""
    for name, fitted in study.fits.items():
        if fitted.spread is None:
            yield (
                f"{name}: there are no more cells than parameters, so the fit has no errors of its"
                " own and predictions have no interval; another rate would give them"
            )
        if not fitted.is_determined:
            yield (
                f"{name}: with these cells latency and transfer cannot be told apart; two rates"
                " and three numbers of workers would tell them apart"
            )
