"""Measures the cells of a study: one run for each, whose first steps do not count."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, Final

from tfcluster import api
from tfcluster.agent.node import limits
from tfcluster.discovery import planning
from tfcluster.discovery.planning import Planned
from tfcluster.errors import UsageError
from tfcluster.preflight import rules
from tfcluster.run_handle import Run
from tfcluster.scaling.study import Measured
from tfcluster.spec import UNCHANGED, LaunchOptions, PlanOptions

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec

STEP_ENDS: Final = "TFCLUSTER_STEP_ENDS"
"""The variable that makes a task report each step; the same as in `tfcluster_workers`."""
WARM_UP_STEPS: Final = 3
WARM_UP_S: Final = 1.0
"""After the first step TensorFlow and TCP find their pace. Both limits must be passed."""
LEAST_S: Final = 1.0
"""Shortest time of a cell's steps, for steps of a few milliseconds."""
FIRST_STEP_S: Final = 600.0
"""Longest wait for the first step of a gang, its start and compilation included."""
_REPORT: Final = "a custom training loop calls tfcluster_workers.reporting.progress(step)"
_OPTIONS: Final = LaunchOptions(gathers=False, keeps_files=False)


@dataclass(frozen=True, slots=True)
class StudyRequest:
    """The cells that a study measures."""

    source: str | None
    """The file of the spec; None: ./tfcluster.json."""
    workers: tuple[int, ...]
    rates: tuple[float, ...]
    """Bits per second."""
    communications: tuple[str, ...]
    steps: int
    """The timed steps of each cell, at least."""
    options: PlanOptions = UNCHANGED

    @property
    def cells(self) -> tuple[tuple[int, str | None, float | None], ...]:
        """Workers, communication and rate of each run; one worker has nothing to send."""
        several = [n for n in self.workers if n > 1]
        return ((1, None, None), *product(several, self.communications, self.rates))


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """The plan of one run of a study."""

    workers: int
    communication: str | None
    rate: float | None
    planned: Planned


Tell = Callable[[int, PlannedCell, float | None], None]
"""A function that gets the number of the cell that is measured next, from 1, the cell, and the
seconds that the rest probably takes, which are None while nothing has been measured."""


def plan_cells(request: StudyRequest) -> tuple[PlannedCell, ...]:
    """Return the plan of each run, of which nothing is started.

    Raises UsageError for a job that cannot be studied, SpecError, and SetupError for what would
    make a run fail.
    """
    first = planning.load(request.source, request.options)
    _require_studied(first.spec)
    cells = []
    for workers, communication, rate in request.cells:
        options = request.options
        sets = (*options.sets, *_sets(first.spec, request, workers, communication, rate))
        planned = planning.plan(request.source, replace(options, sets=sets))
        rules.require_plan(planned)
        cells.append(PlannedCell(workers, communication, rate, planned))
    return tuple(cells)


def _require_studied(spec: ClusterSpec) -> None:
    """Raise UsageError unless the job is a gang of workers that reports its steps."""
    example = "the example spec gradient-volume-2w is one"
    if "ps" in spec.cluster:
        reason, fix = "its workers do not wait for one another", "leave the ps tasks out"
    elif spec.job.kind == "tuner":
        reason, fix = "each tuner trains alone", "use the spec of one training"
    elif spec.job.kind == "plain":
        reason, fix = "its tasks form no cluster", '"kind": "training"'
    elif spec.job.command is not None:
        reason, fix = "a command reports no steps", f"use a job.script or job.module; {example}"
    elif spec.job.hooks == "off":
        reason, fix = "it reports no steps", '"hooks": "auto"'
    else:
        return
    raise UsageError(f"this job cannot be studied: {reason}", fix=fix)


def _sets(
    spec: ClusterSpec,
    request: StudyRequest,
    workers: int,
    communication: str | None,
    rate: float | None,
) -> list[str]:
    """Return the overrides of one run; what the spec says about its network stays."""
    written = spec.runtime.network
    network: dict[str, Any] = {}
    if not isinstance(written, str):
        network = written.model_dump(mode="json", exclude_unset=True, exclude={"links"})
    network["rate"] = rate or request.rates[0]
    sets = [
        f"cluster={json.dumps({'worker': workers})}",
        "runtime.backend=simulated",
        f"runtime.network={json.dumps(network)}",
        f"job.env.{STEP_ENDS}=1",
        "supervision.max_restarts=0",
        "checkpoints.gather=false",
    ]
    if communication is not None:
        sets.append(f"strategy.communication={communication}")
    if not spec.resources.model_fields_set & {"cpus", "threads", "pin"}:
        each = max(1, machine_cores() // max(request.workers))
        sets.append(f"resources.cpus={each}")
        if workers > 1 and workers * each <= machine_cores():
            sets.append("resources.pin=true")
    return sets


def measure(
    cells: Sequence[PlannedCell], request: StudyRequest, tell: Tell, warn: Callable[[str], None]
) -> list[Measured]:
    """Run all cells one after the other; return the measured cells.

    `warn` gets each warning of the runs once: a communication that the job does not read, for
    example. Ctrl-C ends the run and raises KeyboardInterrupt. Raises JobFailed if a run fails,
    UsageError if a job ends before its cells are measured, and what `api.make_launch` raises.
    """
    measured, warned, began_at = list[Measured](), set[str](), time.monotonic()
    for done, cell in enumerate(cells):
        remaining = (time.monotonic() - began_at) / done * (len(cells) - done) if done else None
        tell(done + 1, cell, remaining)
        run = api.start_launch(api.make_launch(cell.planned, _OPTIONS))
        try:
            measured.append(_measure_cell(run, cell, request.steps))
        finally:
            run.stop(now=True)
        for warning in run.state().warnings:
            if warning not in warned:
                warned.add(warning)
                warn(warning)
        run.delete()
    return measured


def _measure_cell(run: Run, cell: PlannedCell, least: int) -> Measured:
    """Read events until `least` steps count; raises JobFailed or UsageError if the run ends."""
    steps, events = Steps(str(cell.planned.plan.chief)), run.events(follow=True)
    until = time.monotonic() + FIRST_STEP_S
    while True:
        timed = steps.timed()
        if len(timed.step_s) >= least and timed.lasted_s >= LEAST_S:
            return Measured(
                workers=cell.workers,
                communication=cell.communication,
                rate=cell.rate,
                step_s=timed.step_s,
                gradient_bytes=steps.gradient_bytes,
                global_batch=steps.global_batch,
                busy_cores=timed.cpu_s / timed.lasted_s,
            )
        if (event := next(events, None)) is None:
            run.wait().check()
            raise _ended_early(steps.count)
        steps.note(event)
        if not steps.count and time.monotonic() > until:
            raise UsageError(f"the job has reported no step for {FIRST_STEP_S:.0f} s", fix=_REPORT)


def _ended_early(steps: int) -> UsageError:
    if not steps:
        return UsageError("the job has ended and reported no steps", fix=_REPORT)
    fix = "let it train longer (`-- --steps 100000`), or measure fewer --steps"
    return UsageError(f"the job ended after {steps:,} steps, before all was measured", fix=fix)


@dataclass(frozen=True, slots=True)
class Timed:
    """The steps of a cell that count."""

    step_s: tuple[float, ...]
    """Seconds of each."""
    lasted_s: float = 0.0
    cpu_s: float = 0.0
    """The processor time of the task in `lasted_s`."""


@dataclass(slots=True)
class Steps:
    """The steps of the task `task`, from the events of its run."""

    task: str
    ends: list[tuple[int, float]] = field(default_factory=list)
    """Step and the time at which it ended, on CLOCK_MONOTONIC."""
    used: list[tuple[float, float]] = field(default_factory=list)
    """The time of a step's end and the processor time until then."""
    gradient_bytes: int | None = None
    global_batch: float | None = None

    @property
    def count(self) -> int:
        """The number of reported steps."""
        return len(self.ends)

    def note(self, event: Mapping[str, Any]) -> None:
        """Take what an event says about the task's steps; ignore all others."""
        if event.get("task") != self.task:
            return
        if event["type"] == "step_ends":
            self.ends += zip(event["steps"], event["times"], strict=True)
            self.used.append((event["times"][-1], event["cpu_s"]))
            self.gradient_bytes = event.get("gradient_bytes", self.gradient_bytes)
        elif event["type"] == "progress" and event.get("mean_examples_per_second"):
            batch = event["mean_examples_per_second"] / event["mean_steps_per_second"]
            self.global_batch = float(round(batch)) if batch >= 1 else batch

    def timed(self) -> Timed:
        """Return the steps that began after the warm-up.

        One report may end several steps (`steps_per_execution`): each gets an equal part.
        """
        warm_at = self.ends[0][1] + WARM_UP_S if self.ends else 0.0
        counted = [entry for entry in self.ends[WARM_UP_STEPS:] if entry[1] >= warm_at]
        step_s = list[float]()
        for (before, began), (number, end) in pairwise(counted):
            if number > before:
                step_s += [(end - began) / (number - before)] * (number - before)
        if not step_s:
            return Timed(())
        began, ended = counted[0][1], counted[-1][1]
        inside = [entry for entry in self.used if began <= entry[0] <= ended]
        if len(inside) < 2:
            return Timed(tuple(step_s), ended - began)
        share = (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])
        return Timed(tuple(step_s), ended - began, share * (ended - began))


def machine_cores() -> int:
    """Return the cores of this machine that tasks may use."""
    cores = sum(map(len, limits.by_node()))
    limit = limits.limit()
    return max(1, min(cores, int(limit)) if limit is not None else cores)
