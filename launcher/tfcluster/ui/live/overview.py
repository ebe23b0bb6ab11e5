"""All live runs as one table (`tfcluster top`), refreshed in place on a terminal."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tfcluster.backends.job_watch import StateFile
from tfcluster.rundir.figures import Figures, figures_of
from tfcluster.rundir.paths import RunPaths, home
from tfcluster.rundir.snapshot import RunSnapshot, to_json_numbers
from tfcluster.ui.formats import (
    cut_to_columns,
    format_bytes,
    format_count,
    format_duration,
    format_value,
)
from tfcluster.ui.live.figure_text import format_epoch, format_step
from tfcluster.ui.live.job_control import JobControl, single_keys
from tfcluster.ui.render import UNLIMITED, Grid, part_lines
from tfcluster.ui.terminal import Segments, Terminal

_REFRESH_S: Final = 1.0
_DROPPED_FIRST: Final = ("CORES", "MEMORY", "TASKS", "ETA", "EPOCH", "STEPS/S", "EXAMPLES/S")
_RIGHT: Final = ("TASKS", "EPOCH", "LOSS", "EXAMPLES/S", "STEPS/S", "MEMORY", "CORES")


class LiveRuns:
    """The states of the live runs; files that have not changed are not read again."""

    def __init__(self) -> None:
        self._files: dict[str, StateFile] = {}
        self._over: set[str] = set()

    def read(self) -> list[RunSnapshot]:
        """Return the live runs, oldest first."""
        found = []
        for folder in _folders(home() / "runs"):
            name = folder.name
            if name in self._over:
                continue
            file = self._files.setdefault(name, StateFile(RunPaths(folder)))
            snapshot = file.read()
            if snapshot is None:
                continue  # it may just begin
            if file.is_over():
                self._over.add(name)
                del self._files[name]
            else:
                found.append(snapshot)
        return sorted(found, key=lambda run: run.started_at)


def describe(run: RunSnapshot, *, now: float) -> dict[str, Any]:
    """Return the facts of one run for JSON; numbers that are not known are None."""
    figures = figures_of(run)
    return {
        "run": run.run,
        "name": run.name,
        "status": str(run.status),
        "elapsed_s": round(now - run.started_at, 3),
        "attempt": run.attempt,
        "tasks": len(run.tasks),
        "step": figures.step,
        "total_steps": figures.total_steps,
        "epoch": figures.epoch,
        "epochs": figures.epochs,
        "eta_s": figures.eta_s,
        "metrics": to_json_numbers(figures.metrics),
        f"{figures.unit}_per_second": figures.rate,
        "rss_bytes": figures.rss_bytes,
        "cores": figures.cores,
    }


def overview_grid(runs: Sequence[RunSnapshot], *, now: float, width: int = UNLIMITED) -> Grid:
    """Return the table of live runs; columns are left out until it fits into `width`."""
    figures = {run.run: figures_of(run) for run in runs}

    def of(text: Callable[[Figures], str]) -> Callable[[RunSnapshot], object]:
        return lambda run: text(figures[run.run])

    columns: dict[str, Callable[[RunSnapshot], object]] = {
        "NAME": lambda run: run.name,
        "ID": lambda run: run.run[-4:],
        "STATUS": lambda run: f"{run.status} {format_duration(now - run.started_at)}",
        "LOSS": of(lambda found: _number(found.metrics.get("loss"), format_value)),
        "EPOCH": of(lambda found: format_epoch(found).removeprefix("epoch ")),
        "STEP": of(lambda found: format_step(found, open_end="").removeprefix("step ")),
        "ETA": of(lambda found: _number(found.eta_s, format_duration)),
        "EXAMPLES/S": of(lambda found: _speed(found, "examples")),
        "STEPS/S": of(lambda found: _speed(found, "steps")),
        "TASKS": lambda run: len(run.tasks),
        "MEMORY": of(lambda found: _number(found.rss_bytes, format_bytes)),
        "CORES": of(lambda found: _number(found.cores, "{:.1f}".format)),
    }
    for name in (*_DROPPED_FIRST, ""):
        grid = Grid.of(runs, columns, _RIGHT)
        if max(map(len, part_lines(grid, UNLIMITED)), default=0) <= width:
            break
        columns.pop(name, None)
    return grid


def watch(runs: LiveRuns, terminal: Terminal) -> None:
    """Show the table at the bottom of the screen until q or Ctrl-C."""
    job_control = JobControl(terminal, lambda: None)
    job_control.install()
    try:
        with contextlib.suppress(KeyboardInterrupt), single_keys(_REFRESH_S) as next_key:
            while True:
                job_control.stop_if_asked()
                terminal.show_footer(_lines(runs.read(), *terminal.footer_size))
                if next_key() in (b"q", b"Q"):
                    break
    finally:
        terminal.clear_footer()
        job_control.restore()


def _lines(runs: Sequence[RunSnapshot], columns: int, rows: int) -> list[Segments]:
    if not runs:
        return [[("no run is live; q or Ctrl-C leaves", "dim")]]
    room = 2 * rows - 2
    shown = runs[-room:]
    grid = overview_grid(shown, now=time.time(), width=columns)
    head, *others = part_lines(grid, columns)
    lines: list[Segments] = [[(cut_to_columns(head, columns), "dim")]]
    lines += [[(line, "")] for line in others[:room]]
    if len(runs) > len(shown):
        lines.append([(f"and {len(runs) - len(shown):,} older runs", "dim")])
    return lines


def _folders(runs: Path) -> list[Path]:
    try:
        with os.scandir(runs) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return []


def _number(value: float | None, text: Callable[[float], str]) -> str:
    return "" if value is None else text(value)


def _speed(figures: Figures, unit: str) -> str:
    return "" if figures.rate is None or figures.unit != unit else format_count(figures.rate)
