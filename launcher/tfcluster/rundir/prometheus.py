"""The states of runs as metrics, in the text format of Prometheus (version 0.0.4).

Names and units follow prometheus.io/docs/practices/naming: base units, `_total` for counters. There
are no timestamps, which node_exporter refuses in its files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from tfcluster.rundir.figures import Figures, figures_of, moves
from tfcluster.rundir.snapshot import RunSnapshot, TaskSnapshot
from tfcluster.rundir.states import TASK, Status

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]
Sample = tuple[Labels, float | None]
"""Labels besides the run's and the task's, and the value; None: it is not known, and left out."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """A run, with what several of its metrics need."""

    snapshot: RunSnapshot
    figures: Figures
    moves: bool


@dataclass(frozen=True, slots=True)
class _OfRun:
    """A metric with the label `run`."""

    name: str
    help: str
    values: Callable[[_Shown], Iterable[Sample]]
    kind: Literal["gauge", "counter"] = "gauge"

    def samples(self, run: _Shown) -> Iterator[Sample]:
        for labels, value in self.values(run):
            yield {"run": run.snapshot.run, **labels}, value


@dataclass(frozen=True, slots=True)
class _OfTask:
    """A metric with the labels `run`, `task` and `node`.

    `only_alive`: measurements of a task that has ended are left out; `only_moving`: so are those of
    a run that takes no steps.
    """

    name: str
    help: str
    values: Callable[[TaskSnapshot], Iterable[Sample]]
    only_alive: bool = True
    only_moving: bool = False
    kind: Literal["gauge"] = "gauge"

    def samples(self, run: _Shown) -> Iterator[Sample]:
        if self.only_moving and not run.moves:
            return
        for task in run.snapshot.tasks:
            is_alive = task.ended_at is None and not run.snapshot.status.is_final
            if is_alive or not self.only_alive:
                of_task = {"run": run.snapshot.run, "task": task.task, "node": task.node}
                for labels, value in self.values(task):
                    yield {**of_task, **labels}, value


def _one(value: float | None) -> list[Sample]:
    return [({}, value)]


def _info(run: _Shown) -> list[Sample]:
    about = run.snapshot
    return [({"name": about.name, "host": about.host, "spec": about.spec or ""}, 1)]


def _states(label: str, states: Iterable[str], present: str) -> list[Sample]:
    return [({label: str(state)}, state == present) for state in states]


_METRICS: Final[tuple[_OfRun | _OfTask, ...]] = (
    _OfRun("run_info", "The run: its name, its spec and the host of its coordinator.", _info),
    _OfRun("run_status", "1 for the status that the run has, 0 for the others.",
           lambda run: _states("status", Status, run.snapshot.status)),
    _OfRun("run_start_time_seconds", "The start of the run, in seconds since 1970.",
           lambda run: _one(run.snapshot.started_at)),
    _OfRun("run_end_time_seconds", "The end of the run, in seconds since 1970.",
           lambda run: _one(run.snapshot.ended_at)),
    _OfRun("run_exit_code", "The exit code of the run, once it has ended.",
           lambda run: _one(run.snapshot.exit_code)),
    _OfRun("run_restarts_total", "Restarts of the tasks, or of one of them.",
           lambda run: _one(len(run.snapshot.restarts)), "counter"),
    _OfRun("run_goodput_ratio", "The part of the run's time in steps that count.",
           lambda run: _one(run.snapshot.goodput.share if run.snapshot.goodput else None)),
    _OfRun("run_lost_steps_total", "Steps that had to be done again after restarts.",
           lambda run: _one(run.snapshot.goodput.lost_steps if run.snapshot.goodput else None),
           "counter"),
    _OfRun("run_step", "The last step; a restart continues at an earlier one.",
           lambda run: _one(run.figures.step)),
    _OfRun("run_progress_ratio", "The part of the training that is done, where its end is known.",
           lambda run: _one(run.figures.done)),
    _OfRun("run_remaining_seconds", "The time left at the mean speed.",
           lambda run: _one(run.figures.eta_s)),
    _OfRun("run_steps_per_second", "The present speed in steps.",
           lambda run: _one(run.figures.steps_per_second)),
    _OfRun("run_examples_per_second", "The present speed in examples, of all tasks together.",
           lambda run: _one(run.figures.examples_per_second)),
    _OfTask("task_state", "1 for the state that the task has, 0 for the others.",
            lambda task: _states("state", TASK, task.state), only_alive=False),
    _OfTask("task_step", "The last step of the task.",
            lambda task: _one(task.step), only_alive=False),
    _OfTask("task_steps_per_second", "The present speed of the task.",
            lambda task: _one(task.steps_per_second), only_moving=True),
    _OfTask("task_step_part_seconds", "The part of each step that the task has last spent so.",
            lambda task: [({"part": part}, each_s) for part, each_s in task.step_parts.items()],
            only_moving=True),
    _OfTask("task_resident_memory_bytes", "Memory in use.", lambda task: _one(task.rss_bytes)),
    _OfTask("task_cpu_cores", "Cores in use.", lambda task: _one(task.cores)),
    _OfTask("task_gpu_utilization_ratio", "The use of the task's GPUs, 0 to 1.",
            lambda task: _one(task.gpu)),
    _OfTask("task_gpu_memory_bytes", "Memory in use on the task's GPUs.",
            lambda task: _one(task.gpu_memory_bytes)),
)  # fmt: skip


def format_metrics(runs: Iterable[RunSnapshot]) -> str:
    """Return the metrics of `runs`; those of which nothing is known are left out."""
    shown = [_Shown(run, figures_of(run), moves(run)) for run in runs]
    return "".join(line for metric in _METRICS for line in _lines(metric, shown))


def _lines(metric: _OfRun | _OfTask, runs: Iterable[_Shown]) -> Iterator[str]:
    name, is_first = f"tfcluster_{metric.name}", True
    for run in runs:
        for labels, value in metric.samples(run):
            if value is None:
                continue
            if is_first:
                yield f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind}\n"
                is_first = False
            listed = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
            yield f"{name}{{{listed}}} {_number(value)}\n"


def _escape(text: str) -> str:
    """Escape the value of a label; what UTF-8 cannot hold is replaced."""
    escaped = text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return escaped.encode(errors="replace").decode()


def _number(value: float) -> str:
    """Return a number as Go reads it: ``+Inf`` and ``NaN`` are its only words."""
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text := repr(value + 0), text)
