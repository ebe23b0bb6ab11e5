"""Compares runs: one row for each number and for each field of the spec that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tfcluster.report.gather import Results, RunReport
from tfcluster.ui.formats import format_bytes, format_count, format_duration, format_value
from tfcluster.ui.render import Grid

_HIDDEN: Final = ("$schema", "name", "version")
_CUTS: Final = (60, 40, 24, 16, 12)
"""The characters to which long values are cut, tried one after the other."""
_MOST_METRICS: Final = 12
_MOST_DIFFERENCES: Final = 40


@dataclass(frozen=True, slots=True)
class Row:
    """One property of all runs; `values` are in the order of the runs, empty where unknown."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several runs beside each other."""

    reports: tuple[RunReport, ...]
    labels: tuple[str, ...]
    """A short name for each run, the same nowhere twice."""
    numbers: tuple[Row, ...]
    differences: tuple[Row, ...]
    """The fields of the specs and the versions that are not the same in all runs."""

    def to_json(self) -> list[dict[str, Any]]:
        """Return for each run its numbers and the fields in which it differs."""
        return [
            {
                "run": report.run,
                "status": report.status,
                "results": report.results.to_json(),
                "differences": {row.name: row.values[index] for row in self.differences},
            }
            for index, report in enumerate(self.reports)
        ]

    def tables(self, width: int) -> list[Grid]:
        """Return tables for a screen of `width` columns, with a column for each run.

        Long values are cut; if that is not enough, the runs are divided among several tables.
        """
        runs = range(len(self.labels))
        for count in range(len(runs), 0, -1):
            chunks = [runs[start : start + count] for start in runs[::count]]
            for most in _CUTS:
                found = [self._table(chunk, most) for chunk in chunks]
                if all(_width(table) <= width for table in found):
                    return found
        return [self._table((run,), _CUTS[-1]) for run in runs]

    def _table(self, runs: Sequence[int], most: int) -> Grid:
        rows = (*self.numbers, *self.differences)
        cells = [(_end(r.name, 28), *(_end(r.values[run], most) for run in runs)) for r in rows]
        return Grid(("", *(_end(self.labels[run], most) for run in runs)), tuple(cells))


def compare(reports: Sequence[RunReport]) -> Comparison:
    """Return the comparison of at least one run."""
    return Comparison(
        reports=tuple(reports),
        labels=_labels([report.run for report in reports]),
        numbers=tuple(_numbers(reports)),
        differences=tuple(_differences(reports)),
    )


def _width(table: Grid) -> int:
    columns = zip(table.headers, *table.rows, strict=True)
    return sum(max(map(len, column)) + 2 for column in columns) - 2


def _end(text: str, most: int) -> str:
    """Return the end of a text, as paths and modules begin alike."""
    return text if len(text) <= most else f"…{text[1 - most :]}"


def _labels(runs: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the runs, with the end of their ids where names are the same."""
    names = [run.rsplit("-", 3)[0] for run in runs]
    ends = [run.rpartition("-")[2] for run in runs]
    pairs = zip(names, ends, strict=True)
    labels = [n if names.count(n) == 1 else f"{n[:12]} {end}" for n, end in pairs]
    return tuple(labels if len(set(labels)) == len(labels) else runs)


def _numbers(reports: Sequence[RunReport]) -> Iterator[Row]:
    yield Row("status", tuple(_status(report) for report in reports))
    for name, cell in _NUMBERS.items():
        yield from _row(name, [cell(report.results) for report in reports])
        if name == "step":
            names = dict.fromkeys(m for report in reports for m in report.results.metrics)
            for metric in list(names)[:_MOST_METRICS]:
                found = [report.results.metrics.get(metric) for report in reports]
                yield from _row(metric, [None if v is None else format_value(v) for v in found])


def _row(name: str, values: Sequence[str | None]) -> Iterator[Row]:
    if any(values):
        yield Row(name, tuple(value or "–" for value in values))


def _status(report: RunReport) -> str:
    code = report.state.exit_code if report.state is not None else None
    return report.status.replace("_", " ") + (f" ({code})" if code else "")


def _or_none(form: Callable[[float], str]) -> Callable[[float | None], str | None]:
    return lambda value: None if value is None else form(value)


_NUMBERS: Final[Mapping[str, Callable[[Results], str | None]]] = {
    "duration": lambda run: _or_none(format_duration)(run.duration_s),
    "first step": lambda run: _or_none(format_duration)(run.first_step_s),
    "step": lambda run: _or_none("{:,}".format)(run.step),
    "examples/s on average": lambda run: _or_none(format_count)(run.examples_per_second),
    "steps/s on average": lambda run: _or_none(format_count)(run.steps_per_second),
    "restarts": lambda run: str(run.restarts),
    "peak memory": lambda run: _or_none(format_bytes)(run.peak_memory_bytes),
    "checkpoint": lambda run: run.checkpoint,
}


def _differences(reports: Sequence[RunReport]) -> Iterator[Row]:
    """Yield what is not the same in all runs: fields of the specs, then versions."""
    facts = [dict(_facts(report)) for report in reports]
    names = list(dict.fromkeys(name for found in facts for name in found))
    different = [n for n in names if len({found.get(n) for found in facts}) > 1]
    for name in different[:_MOST_DIFFERENCES]:
        yield Row(name, tuple(found.get(name, "–") for found in facts))


def _facts(report: RunReport) -> Iterator[tuple[str, str]]:
    for name, value in report.spec.items():
        if name not in _HIDDEN:
            yield from _flatten(name, value)
    yield "tfcluster", report.version
    for node in report.nodes[:1]:
        yield "Python", node.python
        yield from ((f"{name}", version) for name, version in sorted(node.packages.items()))


def _flatten(name: str, value: Any, depth: int = 6) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and depth and value:
        for key, item in value.items():
            yield from _flatten(f"{name}.{key}", item, depth - 1)
    elif isinstance(value, list):
        yield from _options(name, [str(item) for item in value])
    else:
        yield name, str(value)


def _options(name: str, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each option of a job's arguments with its values; of a repeated one, the last counts.

    Words before the first option belong to `name`.
    """
    found: dict[str, list[str]] = {}
    option = name
    for word in words:
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            found[option] = [value] if equals else []
        else:
            found.setdefault(option, []).append(word)
    for option, values in found.items():
        yield option, " ".join(values) or "set"
