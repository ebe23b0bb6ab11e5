"""Panels, tables and the live view as HTML, for notebooks. Every text is escaped."""

from __future__ import annotations

import html
import time
from collections.abc import Iterable, Sequence
from typing import Final

from tfcluster.rundir.figures import figures_of
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.ui.formats import format_duration
from tfcluster.ui.lines import sanitize_text
from tfcluster.ui.live_panel import LastLine, choose_tasks, count_rest, note_task
from tfcluster.ui.panels import closing_panel, runs_grid, status_panel, tasks_grid
from tfcluster.ui.render import Facts, Grid, Panel, Part, Verbatim

_TASKS: Final = 16
"""The rows of the live view's table."""
_COLUMNS: Final = ("task", "state", "step", "steps/s", "metrics", "memory")
_COLOURS: Final = {"plain": "inherit", "good": "green", "bad": "crimson", "warn": "darkorange"}


def run_html(run: tuple[RunSnapshot, RunPaths]) -> str:
    """Return the run as `tfcluster status` shows it."""
    return panel_html(status_panel(*run, now=time.time()))


def result_html(run: tuple[RunSnapshot, RunPaths]) -> str:
    """Return the summary of a run that has ended."""
    return panel_html(closing_panel(*run))


def runs_html(*runs: tuple[RunSnapshot, RunPaths]) -> str:
    """Return the table of `tfcluster ps -a`."""
    return part_html(runs_grid([state for state, _ in runs], now=time.time()))


def panel_html(panel: Panel) -> str:
    """Return the panel, its parts below each other."""
    title = f'<b style="color:{_COLOURS[panel.tone]}">{_escape(panel.title)}</b>'
    return f"<div>{title}{''.join(map(part_html, panel.parts))}</div>"


def part_html(part: Part) -> str:
    """Return one part of a panel."""
    match part:
        case Facts():
            return _table(_row([_cell(name, "th"), _cell(value)]) for name, value in part.pairs)
        case Grid():
            rights = [header in part.right_aligned for header in part.headers]
            head = _row(map(_cell, part.headers, ["th"] * len(rights), rights))
            rows = (_row(map(_cell, row, ["td"] * len(rights), rights)) for row in part.rows)
            return _table([head, *rows])
        case Verbatim():
            return _verbatim(part.lines)
        case text:
            return f"<p>{_escape(text)}</p>"


def live_html(snapshot: RunSnapshot, status: str, lines: Sequence[str], last_line: LastLine) -> str:
    """Return the live view: the status, a progress bar, the tasks, and the last lines of all."""
    parts = [_verbatim(status.split("\n")), _bar(snapshot)]
    if shown := choose_tasks(snapshot, _TASKS):
        grid = tasks_grid(snapshot, _COLUMNS, tasks=shown)
        notes = [note_task(snapshot, task, last_line)[0] for task in shown]
        if any(notes):
            rows = tuple((*row, note) for row, note in zip(grid.rows, notes, strict=True))
            grid = Grid((*grid.headers, "last line"), rows, grid.right_aligned)
        parts.append(part_html(grid))
    if len(shown) < len(snapshot.tasks):
        parts.append(part_html(count_rest(snapshot, shown)))
    return "".join([*parts, _verbatim(lines) if lines else ""])


def _bar(snapshot: RunSnapshot) -> str:
    figures = figures_of(snapshot)
    if figures.done is None:
        return ""
    left = f" · ETA {format_duration(figures.eta_s)}" if figures.eta_s is not None else ""
    bar = f'<progress max="1" value="{figures.done:.3f}" style="width:50%"></progress>'
    return f"<div>{bar} {figures.done:.0%}{left}</div>"


def _table(rows: Iterable[str]) -> str:
    return f"<table>{''.join(rows)}</table>"


def _row(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(cells)}</tr>"


def _cell(text: str, tag: str = "td", is_right: bool = False) -> str:
    # Jupyter aligns all cells to the right.
    side = "right" if is_right else "left"
    return f'<{tag} style="text-align:{side}">{_escape(text)}</{tag}>'


def _verbatim(lines: Iterable[str]) -> str:
    text = "\n".join(lines)
    return f"<pre>{html.escape(sanitize_text(text))}</pre>"


def _escape(text: str) -> str:
    return html.escape(sanitize_text(text)).replace("\n", "<br>")
