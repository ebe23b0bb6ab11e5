"""Gathers what a report shows of one run from its folder, whatever state the run is in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from tfcluster import __version__
from tfcluster.agent import foreign_json
from tfcluster.errors import RunFolderError
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.preflight.rules import format_gpus
from tfcluster.rundir import registry
from tfcluster.rundir.figures import figures_of
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.series import Curve, History, read_history
from tfcluster.rundir.snapshot import RunSnapshot, describe_failure, to_json_numbers
from tfcluster.rundir.task_logs import rank
from tfcluster.ui import history as sentences
from tfcluster.ui import plan_view
from tfcluster.ui.excerpt import excerpt

LINES_OF_CAUSE: Final = 40
MOST_TASKS_IN_FULL: Final = 16
"""The tasks whose command and environment a report has; the TF_CONFIG of each names all."""


@dataclass(frozen=True, slots=True)
class Results:
    """The numbers by which runs are compared; None where one is not known."""

    duration_s: float | None
    first_step_s: float | None
    """The seconds from the start of the chief to its first step."""
    step: int | None
    metrics: Mapping[str, float]
    """The last metrics of the chief."""
    examples_per_second: float | None
    """The mean since the first step of the newest attempt, as in the closing summary."""
    steps_per_second: float | None
    restarts: int
    peak_memory_bytes: int | None
    """The peak of the task with the highest one."""
    checkpoint: str | None

    def to_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__}
        speeds = {n: v for n, v in values.items() if isinstance(v, float)}
        return values | to_json_numbers(speeds) | {"metrics": to_json_numbers(self.metrics)}


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The known facts of one node: where it is, its Python and packages, its GPUs."""

    node: str
    backend: str
    place: str
    """The SSH destination, image or addresses of its tasks."""
    python: str
    packages: Mapping[str, str]
    gpus: str

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class RunReport:
    """Everything that a report shows of one run."""

    paths: RunPaths
    made_at: float
    """Seconds since 1970."""
    state: RunSnapshot | None
    """The state; None for a damaged run."""
    damage: str
    """The reason why the state cannot be read; else empty."""
    plan: Plan | None
    """The plan with the ports of the run's tasks; None where it cannot be read."""
    history: History
    results: Results
    nodes: tuple[NodeFacts, ...]
    lines_of: str
    """The task whose last lines explain the end of the run; empty without."""
    last_lines: tuple[str, ...]
    spec: Mapping[str, Any]
    """The spec as in ``spec.json``, without the values of secrets."""

    @property
    def run(self) -> str:
        return self.paths.run_id

    @property
    def status(self) -> str:
        return str(self.state.status) if self.state is not None else "damaged"

    @property
    def version(self) -> str:
        """The version of tfcluster that started the run; empty where it is not known."""
        events = (moment.event for moment in self.history.timeline if moment.type == "run_started")
        return next((str(event.get("version", "")) for event in events), "")

    def to_json(self) -> dict[str, Any]:
        why, fix = describe_failure(self.state) if self.state is not None else (self.damage, "")
        return {
            "run": self.run,
            "folder": str(self.paths.root),
            "made_at": self.made_at,
            "made_by": __version__,
            "version": self.version,
            "status": self.status,
            "message": why,
            "fix": fix,
            "results": self.results.to_json(),
            "state": self.state.to_json() if self.state is not None else None,
            "last_lines": {"task": self.lines_of, "lines": self.last_lines},
            "nodes": [node.to_json() for node in self.nodes],
            "plan": None if self.plan is None else plan_view.plan_json(self.plan, ()),
            "tasks": [plan_view.task_json(plan, task) for plan, task in tasks_in_full(self)],
            "spec": self.spec,
            "history": self.history.to_json(),
        }


def gather(paths: RunPaths, *, now: float) -> RunReport:
    """Return the report of a run; parts that its folder lacks are empty. `now`: since 1970."""
    damage, state, plan = "", None, None
    try:
        state = registry.load(paths)
    except registry.DamagedRunError as error:
        damage = error.why
    try:
        plan = registry.load_plan(paths)
        plan = plan.at(ports=_ports(state)) if state is not None else plan
    except RunFolderError:
        pass  # a report shows what there is
    found = read_history(paths)
    lines_of, lines = _last_lines(paths, state)
    return RunReport(
        paths=paths,
        made_at=now,
        state=state,
        damage=damage,
        plan=plan,
        history=found,
        results=_results(state, found, now),
        nodes=tuple(_nodes(paths, plan)),
        lines_of=lines_of,
        last_lines=lines,
        spec=_read(paths, "spec"),
    )


def tasks_in_full(report: RunReport) -> Iterator[tuple[Plan, TaskId]]:
    """Yield the plan with each task that is shown in full, among them the root cause."""
    if report.plan is not None:
        tasks = report.plan.tasks
        rest = [task for task in tasks[MOST_TASKS_IN_FULL:] if str(task.id) == report.lines_of]
        for task in (*tasks[: MOST_TASKS_IN_FULL - len(rest)], *rest):
            yield report.plan, task.id


def _results(state: RunSnapshot | None, found: History, now: float) -> Results:
    if state is None:
        metrics = {c.name: c.points[-1][2] for c in _metrics_of(found, found.chief)}
        return Results(None, None, None, metrics, None, None, 0, None, None)
    figures = figures_of(state)
    is_lost = state.ended_at is None and state.status.is_final
    end = max((m.time for m in found.timeline), default=0.0) + state.started_at if is_lost else now
    peaks = [task.peak_rss_bytes or 0 for task in state.tasks]
    memory = chain(*(curve.points for curve in found.curves if curve.name == "rss_bytes"))
    peaks += [int(value) for _, _, value in memory if math.isfinite(value)]
    newest = state.checkpoints[-1] if state.checkpoints else None
    return Results(
        duration_s=(state.ended_at or end) - state.started_at,
        first_step_s=figures.first_step_s,
        step=figures.step,
        metrics=dict(figures.metrics),
        examples_per_second=figures.mean_examples_per_second,
        steps_per_second=figures.mean_steps_per_second,
        restarts=len(state.restarts),
        peak_memory_bytes=max(peaks, default=0) or None,
        checkpoint=sentences.format_checkpoint(newest) or "saved" if newest else None,
    )


def _metrics_of(found: History, task: str | None) -> Sequence[Curve]:
    return [curve for curve in found.curves if curve.task == task and curve.kind == "metric"]


def _last_lines(paths: RunPaths, state: RunSnapshot | None) -> tuple[str, tuple[str, ...]]:
    """Return the task whose last lines explain the end of the run, and these lines.

    This is the root cause; where nothing is known to be it, the chief of a run that did not
    succeed.
    """
    if state is None:
        return "", ()
    cause = sentences.root_cause(state) or {}
    log, task = sentences.log_of_cause(state), str(cause.get("task") or "")
    if log is None and state.status.is_final and state.status != "succeeded" and state.tasks:
        first = min(state.tasks, key=lambda task: rank(task.task))
        log, task = first.log, first.task
    if log is None or not _is_below(paths, log):
        return "", ()
    return task, excerpt(paths.root / log, LINES_OF_CAUSE)


def _is_below(paths: RunPaths, log: str) -> bool:
    """Return whether a path of the state names a file in the run folder, which may be foreign."""
    return (paths.root / log).resolve().is_relative_to(paths.root.resolve())


def _ports(state: RunSnapshot) -> dict[TaskId, int]:
    ports = {}
    for task in state.tasks:
        port = task.address.rpartition(":")[2]
        if port.isdecimal() and len(port) <= 5:
            ports[TaskId.parse(task.task)] = int(port)
    return ports


def _nodes(paths: RunPaths, plan: Plan | None) -> Iterator[NodeFacts]:
    """Yield what plan and preflight know of each node; preflight has asked the node itself."""
    if plan is None:
        return
    seen = _read(paths, "preflight").get("seen")
    answers = [a for a in seen if isinstance(a, dict)] if isinstance(seen, list) else []
    by_node = {str(answer.get("node")): answer for answer in answers}
    for node in plan.nodes:
        answer, python = by_node.get(node.name, {}), node.interpreter
        packages, gpus = answer.get("packages"), answer.get("gpus")
        if not isinstance(packages, dict):
            packages = python.packages if python is not None else {}
        hosts = dict.fromkeys(task.host for task in plan.tasks if task.node == node.name)
        image = node.container.image if node.container is not None else None
        yield NodeFacts(
            node=node.name,
            backend=node.backend,
            place=node.destination or image or ", ".join(host for host in hosts if host),
            python=str(answer.get("python") or (python.version if python else None) or ""),
            packages={str(n): str(v) for n, v in packages.items()},
            gpus=format_gpus([str(gpu) for gpu in gpus]) if isinstance(gpus, list) else "",
        )


def _read(paths: RunPaths, name: str) -> dict[str, Any]:
    try:
        return foreign_json.read_json_object(getattr(paths, name))
    except (OSError, ValueError):
        return {}
