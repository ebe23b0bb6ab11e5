"""Measures the cells of a study: one run for each, whose first steps do not count."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, Final

from tfcluster import api, kinds
from tfcluster.agent.node import limits
from tfcluster.discovery import planning
from tfcluster.discovery.planning import Planned
from tfcluster.errors import UsageError
from tfcluster.preflight import rules
from tfcluster.run_handle import Run
from tfcluster.scaling.study import Measured
from tfcluster.spec import UNCHANGED, JobName, LaunchOptions, PlanOptions
from tfcluster.spec import load as spec_load
from tfcluster.spec.cluster import count, task_names

if TYPE_CHECKING:
    from tfcluster.spec.cluster import TaskEntry
    from tfcluster.spec.model import ClusterSpec

STEP_ENDS: Final = "TFCLUSTER_STEP_ENDS"
"""The variable that makes a task report each step; the same as in `tfcluster_workers`."""
WARM_UP_STEPS: Final = 3
WARM_UP_S: Final = 1.0
"""After the first step TensorFlow and TCP find their pace. Both limits must be passed."""
LEAST_S: Final = 1.0
"""Shortest time of a cell's steps, for steps of a few milliseconds."""
FIRST_STEP_S: Final = 600.0
"""Longest wait for the first step once the tasks have started, compilation included."""
PARTS_S: Final = 30.0
"""Longest wait for the parts of a step after its steps are timed: they come for 5 to 10 s at once,
and the first ones contain the warm-up."""
_REPORT: Final = "a custom training loop calls tfcluster_workers.reporting.progress(step)"
_OPTIONS: Final = LaunchOptions(gathers=False, keeps_files=False)


CellKey = tuple[int, str | None, float | None]
"""Workers, communication and rate of a run."""


@dataclass(frozen=True, slots=True)
class StudyRequest:
    """The cells that a study measures."""

    source: str | None
    """The file of the spec; None: ./tfcluster.json."""
    workers: tuple[int, ...]
    rates: tuple[float, ...]
    """Bits per second of simulated networks; none: the spec's own backend and hosts."""
    communications: tuple[str, ...]
    """The algorithms; empty: the spec's own."""
    steps: int
    """The timed steps of each cell, at least."""
    options: PlanOptions = UNCHANGED

    @property
    def cells(self) -> tuple[CellKey, ...]:
        """The cells in the order of their runs; one worker has nothing to send."""
        several = [n for n in self.workers if n > 1]
        cells = product(several, self.communications or (None,), self.rates or (None,))
        return ((1, None, None), *cells)


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """The plan of one run of a study."""

    workers: int
    communication: str | None
    rate: float | None
    planned: Planned

    @property
    def backend(self) -> str:
        return self.planned.plan.nodes[0].backend

    @property
    def is_here(self) -> bool:
        """True if all its workers share the cores of this machine."""
        context = self.planned.context
        return all(context.is_here(node.backend) for node in self.planned.plan.nodes)


Tell = Callable[[int, PlannedCell, float | None], None]
"""A function that gets the number of the cell that is measured next, from 1, the cell, and the
seconds that the rest probably takes, which are None while nothing has been measured."""


def plan_cells(request: StudyRequest) -> tuple[PlannedCell, ...]:
    """Return the plan of each run, of which nothing is started.

    Raises UsageError for a job or a number of workers that cannot be studied, SpecError, and
    SetupError for what would make a run fail.
    """
    given = planning.load(request.source, request.options)
    _require_studied(given.spec)

    def plan(cell: CellKey, resources: Mapping[str, Any]) -> PlannedCell:
        spec = cell_spec(given.spec, cell, request, resources)
        return PlannedCell(*cell, planning.plan(replace(given, spec=spec), request.options))

    largest, cells = plan(max(request.cells, key=lambda cell: cell[0]), {}), []
    for cell in request.cells:
        cells.append(plan(cell, _equal_resources(largest, cell[0]) if largest.is_here else {}))
        rules.require_plan(cells[-1].planned)
    return tuple(cells)


def notes_of(cells: Sequence[PlannedCell]) -> tuple[str, ...]:
    """Return what a reader must know about the resources of the workers."""
    spec, plan = cells[0].planned.spec, max(cells, key=lambda cell: cell.workers).planned.plan
    is_given = spec.resources.gpus is not None and spec.resources.cpus is not None
    if is_given or cells[0].is_here or max(Counter(t.node for t in plan.tasks).values()) == 1:
        return ()
    return (
        "several workers share a node, where a worker alone has all cores and GPUs unless"
        " resources.cpus and resources.gpus say how many each one gets",
    )


def _require_studied(spec: ClusterSpec) -> None:
    """Raise UsageError unless the job is a gang of workers that reports its steps."""
    example = "the example spec gradient-volume-2w is one"
    if "ps" in spec.cluster:
        reason, fix = "its workers do not wait for one another", "leave the ps tasks out"
    elif "data_worker" in spec.cluster:
        reason, fix = "a study starts no tf.data service", "leave it out of the cluster"
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


def cell_spec(
    given: ClusterSpec, cell: CellKey, request: StudyRequest, resources: Mapping[str, Any]
) -> ClusterSpec:
    """Return the spec of one run: the given one with other workers, perhaps simulated.

    Nothing about checkpoints stays: a run neither begins from the user's nor replaces them.
    `resources` are set in the section of that name. Raises UsageError and SpecError.
    """
    workers, communication, rate = cell
    reduced = _with_workers(given, workers, is_simulated=bool(request.rates))
    tasks = task_names(reduced.cluster)
    value = reduced.model_dump(mode="json", by_alias=True, exclude_unset=True)
    runtime, job = value.setdefault("runtime", {}), value["job"]
    job["env"] = {**job.get("env", {}), STEP_ENDS: "1"}
    _keep(job, "per_task", {*tasks, *reduced.cluster})
    network = runtime.get("network")
    if request.rates:
        network = network if isinstance(network, dict) else {}
        simulated = {**network, "rate": rate or request.rates[0], "links": []}
        runtime |= {"backend": kinds.SIMULATED, "network": simulated}
        _keep(runtime, "hosts", {"*"})
    else:
        _keep(runtime, "hosts", {"*", *reduced.known_hosts})
        if isinstance(network, dict):
            links = network.get("links") or ()
            network["links"] = [link for link in links if {*link["between"]} <= {*tasks}]
    value["checkpoints"] = {"gather": False}
    value["supervision"] = {
        **value.get("supervision", {}), "max_restarts": 0, "min_workers": None, "on_end": None,
    }  # fmt: skip
    value["resources"] = {**value.get("resources", {}), **resources}
    if communication is not None:
        value.setdefault("strategy", {})["communication"] = communication
    return spec_load.load(value, is_complete=True).spec


def _with_workers(spec: ClusterSpec, workers: int, *, is_simulated: bool) -> ClusterSpec:
    """Return the spec with its first `workers` tasks that train, and no evaluator.

    Raises UsageError for more workers than it lists addresses for.
    """
    listed = [job for job, tasks in spec.cluster.items() if not isinstance(tasks, int)]
    if listed and not is_simulated and workers > spec.trainer_count:
        raise UsageError(
            f"--workers: the spec lists addresses for {spec.trainer_count} workers, not {workers}",
            fix="list more in the cluster, or name hosts: -H gpu1,gpu2:2 (2 slots)",
        )
    chiefs = count(spec.cluster, "chief")
    numbers: dict[JobName, int] = {"chief": chiefs, "worker": workers - chiefs}
    cluster: dict[JobName, int | tuple[TaskEntry, ...]] = {}
    for job, number in numbers.items():
        tasks = spec.cluster.get(job, number)
        if number:
            cluster[job] = number if is_simulated or isinstance(tasks, int) else tasks[:number]
    return spec.model_copy(update={"cluster": cluster})


def _keep(section: dict[str, Any], name: str, known: Collection[str]) -> None:
    """Leave out what `section` says about tasks or hosts that a run does not have."""
    if name in section:
        section[name] = {key: value for key, value in section[name].items() if key in known}


def _equal_resources(largest: PlannedCell, workers: int) -> dict[str, Any]:
    """Return the resources of each worker on this machine: as many in all cells."""
    written, most = largest.planned.spec.resources, largest.workers
    resources: dict[str, Any] = {}
    if not written.model_fields_set & {"cpus", "threads", "pin"}:
        resources["cpus"] = each = max(1, machine_cores() // most)
        if workers > 1 and workers * each <= machine_cores():
            resources["pin"] = True
    gpus = len(largest.planned.context.gpus or ())
    if written.gpus is None and gpus >= most:
        resources["gpus"] = gpus // most
    return resources


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
            measured.append(measure_cell(run, cell, request))
        finally:
            run.stop(now=True)
        for warning in run.state().warnings:
            if warning not in warned:
                warned.add(warning)
                warn(warning)
        run.delete()
    return measured


def measure_cell(run: Run, cell: PlannedCell, request: StudyRequest) -> Measured:
    """Read events until enough steps count; raises JobFailed or UsageError if the run ends.

    On the real cluster also until each worker has sent what its steps consist of, if it does.
    """
    steps, events = Steps(str(cell.planned.plan.chief)), run.events(follow=True)
    first_until = parts_until = math.inf
    while True:
        timed = steps.timed()
        if is_timed := len(timed.step_s) >= request.steps and timed.lasted_s >= LEAST_S:
            parts_until = min(parts_until, time.monotonic() + PARTS_S)
            has_parts = bool(request.rates) or steps.tasks_with_parts >= cell.workers
            if has_parts or time.monotonic() > parts_until:
                break
        if (event := next(events, None)) is None:
            if is_timed:
                break
            run.wait().check()
            raise _ended_early(steps.count)
        steps.note(event)
        if event["type"] == "task_started":  # until then it may be queued, or fetch an image
            first_until = time.monotonic() + FIRST_STEP_S
        if not steps.count and time.monotonic() > first_until:
            raise UsageError(f"the job has reported no step for {FIRST_STEP_S:.0f} s", fix=_REPORT)
    return Measured(
        workers=cell.workers,
        communication=cell.communication,
        rate=cell.rate,
        step_s=timed.step_s,
        gradient_bytes=steps.gradient_bytes,
        global_batch=steps.global_batch,
        busy_cores=timed.cpu_s / timed.lasted_s,
        parts=steps.parts(),
        nodes=tuple(node.name for node in cell.planned.plan.nodes),
    )


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
    """The steps of a run, which the task `task` leads, from the run's events."""

    task: str
    ends: list[tuple[int, float]] = field(default_factory=list)
    """Step and the time at which it ended, on the task's CLOCK_MONOTONIC."""
    used: list[tuple[float, float]] = field(default_factory=list)
    """The time of a step's end and the processor time until then."""
    windows: list[Mapping[str, Any]] = field(default_factory=list)
    """The events ``step_times`` of all tasks: what some steps consist of."""
    gradient_bytes: int | None = None
    global_batch: float | None = None

    @property
    def count(self) -> int:
        """The number of reported steps."""
        return len(self.ends)

    def note(self, event: Mapping[str, Any]) -> None:
        """Take what an event says about the steps; ignore all others."""
        if event["type"] == "step_times":
            self.windows.append(event)
        elif event.get("task") != self.task:
            return
        elif event["type"] == "step_ends":
            self.ends += zip(event["steps"], event["times"], strict=True)
            self.used.append((event["times"][-1], event["cpu_s"]))
            self.gradient_bytes = event.get("gradient_bytes", self.gradient_bytes)
        elif event["type"] == "progress" and event.get("mean_examples_per_second"):
            batch = event["mean_examples_per_second"] / event["mean_steps_per_second"]
            self.global_batch = float(round(batch)) or batch  # the two are rounded

    def timed(self) -> Timed:
        """Return the steps that began after the warm-up.

        One report may end several steps (`steps_per_execution`): each gets an equal part.
        """
        counted, step_s = self._warm_ends(), list[float]()
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

    def _warm_ends(self) -> list[tuple[int, float]]:
        """Return the ends of steps after the warm-up."""
        warm_at = self.ends[0][1] + WARM_UP_S if self.ends else 0.0
        return [entry for entry in self.ends[WARM_UP_STEPS:] if entry[1] >= warm_at]

    @property
    def tasks_with_parts(self) -> int:
        """The number of tasks that have sent what steps after the warm-up consist of."""
        return len({window["task"] for window in self._warm_windows()})

    def _warm_windows(self) -> list[Mapping[str, Any]]:
        ends = self._warm_ends()
        return [w for w in self.windows if ends and w["step"] - w["steps"] >= ends[0][0]]

    def parts(self) -> dict[str, float] | None:
        """Return the parts of a step after the warm-up in seconds, as a mean over the tasks.

        None if no task has sent them.
        """
        of_tasks: dict[str, Counter[str]] = {}
        steps = Counter[str]()
        for window in self._warm_windows():
            of_tasks.setdefault(window["task"], Counter()).update(window["parts"])
            steps[window["task"]] += window["steps"]
        if not of_tasks:
            return None
        names = dict.fromkeys(name for parts in of_tasks.values() for name in parts)
        return {
            name: statistics.fmean(parts[name] / steps[task] for task, parts in of_tasks.items())
            for name in names
        }


def machine_cores() -> int:
    """Return the cores of this machine that tasks may use."""
    cores = sum(map(len, limits.by_node()))
    limit = limits.limit()
    return max(1, min(cores, int(limit)) if limit is not None else cores)
