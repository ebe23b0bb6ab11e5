"""Compares runs: a row for each number, and for each setting, of which those that differ count.

`tfcluster compare` prints them; the page of the comparison shows them below the curves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from tfcluster.rundir.figures import figures_of
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.series import History, read_history
from tfcluster.rundir.snapshot import RunSnapshot, to_json_numbers
from tfcluster.rundir.states import Status
from tfcluster.ui import history
from tfcluster.ui.formats import (
    cut_to_columns,
    format_bytes,
    format_duration,
    format_known,
    format_large_rate,
    format_value,
)
from tfcluster.ui.panels import style_of
from tfcluster.ui.render import Grid
from tfcluster.web.run_data import RunFiles, read_files

MOST_RUNS: Final = 6
_HIDDEN: Final = ("$schema", "name", "version")
_ARGUMENTS, _COMMAND = "job.args", "job.command"
_UNKNOWN: Final = "–"
_SET: Final = "set"
"""The value of an option without one."""
_CUTS: Final = range(100, 10, -2)
"""The characters to which long values are cut, tried one after the other."""
_MOST_METRICS: Final = 12
_MOST_DIFFERENCES: Final = 40


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
    goodput: float | None
    """The share of the time in steps that count, 0 to 1."""
    peak_memory_bytes: int | None
    """The peak of the task with the highest one."""
    checkpoint: str | None

    @classmethod
    def of(cls, state: RunSnapshot, past: History, now: float) -> Results:
        figures = figures_of(state)
        duration_s = (state.ended_at or now) - state.started_at
        if state.ended_at is None and state.status.is_final:  # lost or damaged
            duration_s = max((moment.time for moment in past.timeline), default=0.0)
        peaks = [task.peak_rss_bytes or 0 for task in state.tasks]
        memory = chain(*(curve.points for curve in past.curves if curve.name == "rss_bytes"))
        peaks += [int(value) for _, _, value in memory if math.isfinite(value)]
        newest = state.checkpoints[-1] if state.checkpoints else None
        return cls(
            duration_s=duration_s,
            first_step_s=figures.first_step_s,
            step=figures.step,
            metrics=dict(figures.metrics),
            examples_per_second=figures.mean_examples_per_second,
            steps_per_second=figures.mean_steps_per_second,
            restarts=len(state.restarts),
            goodput=state.goodput.share if state.goodput is not None else None,
            peak_memory_bytes=max(peaks, default=0) or None,
            checkpoint=history.format_checkpoint(newest) or "saved" if newest else None,
        )

    def to_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__}
        speeds = {n: v for n, v in values.items() if isinstance(v, float)}
        return values | to_json_numbers(speeds) | {"metrics": to_json_numbers(self.metrics)}


@dataclass(frozen=True, slots=True)
class Row:
    """One property of all runs; `values` are in the order of the runs, empty where unknown."""

    name: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1

    @property
    def is_argument(self) -> bool:
        """Return whether this is an option of the job, or its arguments before the first one."""
        return self.name == _ARGUMENTS or self.name.startswith("-")

    def format_argument(self, run: int) -> str:
        """Return an argument of the run at this place as on its command line."""
        words = (self.name, self.values[run])
        return " ".join(word for word in words if word not in (_ARGUMENTS, _SET))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several runs beside each other."""

    runs: tuple[str, ...]
    statuses: tuple[str, ...]
    results: tuple[Results, ...]
    labels: tuple[str, ...]
    """A short name for each run, the same nowhere twice."""
    numbers: tuple[Row, ...]
    circumstances: tuple[Row, ...]
    """The reasons, times and hosts; only the page has the room for all of them."""
    settings: tuple[Row, ...]
    """The fields of the specs, and the versions."""

    @property
    def differences(self) -> tuple[Row, ...]:
        """The settings that are not the same in all runs."""
        return tuple([row for row in self.settings if row.differs][:_MOST_DIFFERENCES])

    def to_json(self) -> list[dict[str, Any]]:
        """Return for each run its numbers and the settings in which it differs."""
        return [
            {
                "run": run,
                "status": self.statuses[index],
                "results": self.results[index].to_json(),
                "differences": {row.name: row.values[index] for row in self.differences},
            }
            for index, run in enumerate(self.runs)
        ]

    def to_page(self) -> dict[str, Any]:
        """Return what the page shows: of each run a label and its own arguments, and all rows."""
        runs = zip(self.runs, self.labels, self._own_arguments(), strict=True)
        parts = {"Settings": self.settings, "Results": (*self.numbers, *self.circumstances)}
        return {
            "runs": [{"run": run, "label": label, "arguments": own} for run, label, own in runs],
            "parts": [
                {"title": title, "rows": [{"name": row.name, "values": row.values} for row in rows]}
                for title, rows in parts.items()
            ],
        }

    def _own_arguments(self) -> list[str]:
        """Return the arguments of each run that not all runs have, as on a command line."""
        rows = [row for row in self.settings if row.is_argument and row.differs]
        return [
            " ".join(row.format_argument(index) for row in rows if row.values[index] != _UNKNOWN)
            for index in range(len(self.runs))
        ]

    def tables(self, width: int) -> list[Grid]:
        """Return tables for a screen of `width` columns, with a column for each run.

        Long values are cut; if that is not enough, the runs are divided among several tables.
        """
        runs = range(len(self.labels))
        for count in range(len(runs), 0, -1):
            chunks = [runs[start : start + count] for start in runs[::count]]
            for most in _CUTS:
                tables = [self._table(chunk, most) for chunk in chunks]
                if all(table.width <= width for table in tables):
                    return tables
        return [self._table((run,), _CUTS[-1]) for run in runs]

    def _table(self, runs: Sequence[int], most: int) -> Grid:
        status, *numbers = self.numbers
        reasons = [row for row in self.circumstances if row.name == "reason"]
        rows = (status, *reasons, *numbers, *self.differences)
        cells = [
            (_ending(r.name, 28), *(_cut(r.name, r.values[run], most) for run in runs))
            for r in rows
        ]
        headers = ("", *(_ending(self.labels[run], most) for run in runs))
        styles = (("", *(_style(self.statuses[run]) for run in runs)), *((),) * (len(rows) - 1))
        return Grid(headers, tuple(cells), styles=styles)


def compare(runs: Sequence[RunPaths], *, now: float) -> Comparison:
    """Return the comparison of runs; `now`: seconds since 1970."""
    files = [read_files(paths) for paths in runs]
    pasts = [read_history(paths) for paths in runs]
    results = [Results.of(f.snapshot, past, now) for f, past in zip(files, pasts, strict=True)]
    settings = [dict(_settings(f, past)) for f, past in zip(files, pasts, strict=True)]
    return Comparison(
        runs=tuple(paths.run_id for paths in runs),
        statuses=tuple(file.status for file in files),
        results=tuple(results),
        labels=_labels([paths.run_id for paths in runs]),
        numbers=(Row("status", tuple(map(_status, files))), *_numbers(results)),
        circumstances=tuple(_circumstances([file.snapshot for file in files])),
        settings=tuple(
            Row(name, tuple(of_run.get(name, _UNKNOWN) for of_run in settings))
            for name in dict.fromkeys(chain.from_iterable(settings))
        ),
    )


def _cut(name: str, value: str, most: int) -> str:
    """Return a value in `most` characters; a reason begins with what matters."""
    return cut_to_columns(value, most) if name == "reason" else _ending(value, most)


def _style(status: str) -> str:
    return style_of(Status(status)) if status in {*Status} else ""


def _ending(text: str, most: int) -> str:
    """Return the end of a text, as paths and modules begin alike."""
    return text if len(text) <= most else f"…{text[1 - most :]}"


def _labels(runs: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the runs, with the end of their ids where names are the same."""
    names = [run.rsplit("-", 3)[0] for run in runs]
    ends = [run.rpartition("-")[2] for run in runs]
    pairs = zip(names, ends, strict=True)
    labels = [n if names.count(n) == 1 else f"{n[:12]} {end}" for n, end in pairs]
    return tuple(labels if len(set(labels)) == len(labels) else runs)


def _numbers(results: Sequence[Results]) -> Iterator[Row]:
    for name, cell in _NUMBERS.items():
        yield from _rows(name, [cell(run) for run in results])
        if name == "step":
            names = dict.fromkeys(metric for run in results for metric in run.metrics)
            for metric in list(names)[:_MOST_METRICS]:
                values = [run.metrics.get(metric) for run in results]
                yield from _rows(metric, [format_known(value, format_value) for value in values])


def _rows(name: str, values: Sequence[str | None]) -> Iterator[Row]:
    if any(values):
        yield Row(name, tuple(value or _UNKNOWN for value in values))


def _status(files: RunFiles) -> str:
    code = files.snapshot.exit_code
    return files.status.replace("_", " ") + (f" ({code})" if code else "")


_NUMBERS: Final[Mapping[str, Callable[[Results], str | None]]] = {
    "duration": lambda run: format_known(run.duration_s, format_duration),
    "first step": lambda run: format_known(run.first_step_s, format_duration),
    "step": lambda run: format_known(run.step, "{:,}".format),
    "examples/s on average": lambda run: format_known(run.examples_per_second, format_large_rate),
    "steps/s on average": lambda run: format_known(run.steps_per_second, format_large_rate),
    "restarts": lambda run: str(run.restarts),
    "goodput": lambda run: format_known(run.goodput, "{:.1%}".format),
    "peak memory": lambda run: format_known(run.peak_memory_bytes, format_bytes),
    "checkpoint": lambda run: run.checkpoint,
}


def _circumstances(states: Sequence[RunSnapshot]) -> Iterator[Row]:
    yield from _rows("reason", [history.format_short_reason(state) for state in states])
    starts = [time.localtime(state.started_at) for state in states]
    yield from _rows("started", [time.strftime("%Y-%m-%d %H:%M:%S", start) for start in starts])
    yield from _rows("host", [state.host for state in states])
    yield from _rows("tasks", [str(len(state.tasks)) for state in states])


def _settings(files: RunFiles, past: History) -> Iterator[tuple[str, str]]:
    for name, value in files.spec.items():
        if name not in _HIDDEN:
            yield from _flatten(name, value)
    begins = (moment.event for moment in past.timeline if moment.type == "run_started")
    yield "tfcluster", next((str(event.get("version", "")) for event in begins), "")
    for node in files.nodes[:1]:
        yield "Python", node["python"]
        yield from sorted(node["packages"].items())


def _flatten(name: str, value: Any, depth: int = 6) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and depth and value:
        for key, item in value.items():
            yield from _flatten(f"{name}.{key}", item, depth - 1)
    elif isinstance(value, list):
        yield from _options(name, [str(item) for item in value])
    else:
        yield name, str(value)


def _options(name: str, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each option of a list with its values; of a repeated one, the last counts.

    Words before the first option belong to `name`, which precedes the options of all lists but the
    job's own arguments.
    """
    options: dict[str, list[str]] = {}
    option = name
    for word in words:
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            if name not in (_ARGUMENTS, _COMMAND):
                option = f"{name} {option}"
            options[option] = [value] if equals else []
        else:
            options.setdefault(option, []).append(word)
    for option, values in options.items():
        yield option, " ".join(values) or _SET
