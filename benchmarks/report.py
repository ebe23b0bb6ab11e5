"""Makes the figures of docs/benchmarks.md from CSV files: tables, verdicts, charts, commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.catalog import METRICS
from benchmarks.chart import Bar, chart
from benchmarks.figures import Spread, Verdict, judge, rounds, spread
from benchmarks.harness import Claim, Metric, Value, say
from benchmarks.results import read, write
from benchmarks.table import number

DOCS = Path(__file__).parent.parent / "docs"
BEGIN = "<!-- figures: made by `python -m benchmarks report`, do not edit them by hand -->"
END = "<!-- end of the figures -->"
_TYPED = re.compile(r"--runs \d+ --seed \d+")


def report(paths: Sequence[Path], docs: Path = DOCS) -> int:
    """Publish the CSV files `paths`; metrics published before and not among them stay unchanged."""
    published = docs / "benchmarks"
    for path in paths:
        write(published / f"{path.stem}.csv", read(path))
    found = {name: published / f"{name}.csv" for name in METRICS}
    values = {name: read(path) for name, path in found.items() if path.exists()}
    metrics = {name: METRICS[name].make() for name in values}
    for name, metric in metrics.items():
        (published / f"{name}.svg").write_text(drawn(metric, values[name]))
    page = docs / "benchmarks.md"
    page.write_text(_placed(page.read_text(), figures(metrics, values)))
    say(f"{page}: {', '.join(values)}")
    return 0


def _placed(page: str, text: str) -> str:
    """Return the page with `text` between its markers; a page without markers gets them at its end.

    The prose around them stays.
    """
    if BEGIN not in page:
        page = f"{page.rstrip()}\n\n{BEGIN}\n{END}\n"
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}"


def figures(metrics: Mapping[str, Metric], values: Mapping[str, Sequence[Value]]) -> str:
    """Return a table of all claims that have a target, then a section for each metric."""
    lines = [
        "## Targets",
        "",
        "| | figure | 95 % | target | stretch target |",
        "|---|---|---|---|---|",
    ]
    for name, metric in metrics.items():
        for claim, verdict in _verdicts(metric, values[name]):
            if verdict.bar is not None:
                lines.append(f"| `{name}`: {claim.text} | {_row(claim, verdict)} |")
    for name, metric in metrics.items():
        lines += ["", *_section(name, metric, values[name])]
    return "\n".join(lines) + "\n"


def _section(name: str, metric: Metric, values: Sequence[Value]) -> Iterator[str]:
    yield f"## {metric.title}"
    yield ""
    yield f"![{metric.title}](benchmarks/{name}.svg)"
    yield ""
    kinds = [f"{kind}, {one.unit}, {one.summary}" for kind, one in metric.quantities.items()]
    yield f"| | runs | {' | '.join(kinds)} |"
    yield "|---" * (2 + len(kinds)) + "|"
    for arm in _arms(metric, values):
        cells = [_cell(metric, values, arm, kind) for kind in metric.quantities]
        runs = {value.run for value in values if value.arm == arm}
        yield f"| {arm} | {len(runs)} | {' | '.join(cells)} |"
    if verdicts := [*_verdicts(metric, values)]:
        yield ""
        yield "| | figure | 95 % | target | stretch target |"
        yield "|---|---|---|---|---|"
        for claim, verdict in verdicts:
            yield f"| {claim.text} ({claim.quantity}) | {_row(claim, verdict)} |"
    yield ""
    if metric.note:
        yield metric.note
        yield ""
    yield from _made_by(name, metric, values)


def _made_by(name: str, metric: Metric, values: Sequence[Value]) -> Iterator[str]:
    """Yield the command of the metric, the command of each arm, and the versions."""
    arms = [(arm, next(v for v in values if v.arm == arm)) for arm in _arms(metric, values)]
    yield "```console"
    for more in dict.fromkeys("".join(_TYPED.findall(value.versions)) for value in values):
        yield f"$ python -m benchmarks {name} {more}".rstrip()
    width = max(len(arm) for arm, _ in arms)
    for arm, value in arms:
        yield f"{arm:<{width}}  {value.command}"
    yield "```"
    yield ""
    versions = {part: None for _, value in arms for part in value.versions.split("; ")}
    shown = [part for part in versions if not part.startswith("--runs")]
    every = f"[{name}.csv](benchmarks/{name}.csv)"
    commits = ", ".join(dict.fromkeys(value.commit for value in values))
    yield f"Commit {commits}; {'; '.join(shown)}. Every value: {every}."


def _arms(metric: Metric, values: Sequence[Value]) -> list[str]:
    """Return the arms that were measured, in the metric's order."""
    measured = {value.arm for value in values}
    return [arm for arm in metric.arms if arm in measured]


def _spread(metric: Metric, values: Sequence[Value], arm: str, kind: str) -> Spread | None:
    by_round = rounds(values, arm, kind)
    seen = [value for several in by_round.values() for value in several]
    return spread(seen, metric.quantities[kind]) if seen else None


def _cell(metric: Metric, values: Sequence[Value], arm: str, kind: str) -> str:
    """Return the summary and, in brackets, the quartiles and the least and greatest value."""
    if not (seen := _spread(metric, values, arm, kind)):
        return ""
    if seen.least == seen.most:
        return number(seen.summary)
    quartiles = f"{number(seen.low)}–{number(seen.high)}"
    return f"**{number(seen.summary)}** ({quartiles}; {number(seen.least)}–{number(seen.most)})"


def _verdicts(metric: Metric, values: Sequence[Value]) -> Iterator[tuple[Claim, Verdict]]:
    for claim in metric.claims:
        if verdict := judge(claim, values, metric.quantities[claim.quantity]):
            yield claim, verdict


def _row(claim: Claim, verdict: Verdict) -> str:
    unit = " ×" if claim.beside else ""
    sign = "≤" if claim.at_most is not None else "≥"
    bar = claim.at_most if claim.at_most is not None else claim.at_least
    cells = [f"**{number(verdict.figure)}{unit}**", f"{number(verdict.low)}–{number(verdict.high)}"]
    for limit, is_reached in ((bar, verdict.bar), (claim.stretch, verdict.stretch)):
        reached = "reached" if is_reached else "**missed**"
        cells.append("" if limit is None else f"{sign} {limit:g}: {reached}")
    return " | ".join(cells)


def drawn(metric: Metric, values: Sequence[Value]) -> str:
    """Return a chart of the metric's first quantity; arms with a claim are highlighted."""
    kind, quantity = next(iter(metric.quantities.items()))
    ours = {claim.arm for claim in metric.claims}
    bars = [
        Bar(arm, seen, arm in ours)
        for arm in _arms(metric, values)
        if (seen := _spread(metric, values, arm, kind))
    ]
    return chart(f"{metric.title}: {kind}", quantity.unit, bars)
