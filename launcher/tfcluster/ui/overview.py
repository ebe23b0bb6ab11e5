"""All live runs as one table (`tfcluster top`), refreshed in place on a terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any, Final

from rich.text import Text

from tfcluster.backends.job_watch import WatchedState
from tfcluster.rundir.figures import figures_of
from tfcluster.rundir.paths import RunPaths, home
from tfcluster.rundir.registry import run_folders
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.ui.job_control import JobControl, Keyboard, tidied_at_end
from tfcluster.ui.panels import runs_grid
from tfcluster.ui.render import part_texts
from tfcluster.ui.terminal import Terminal

_REFRESH_S: Final = 1.0


class LiveRuns:
    """The states of the live runs; files that have not changed are not read again."""

    def __init__(self) -> None:
        self._files: dict[str, WatchedState] = {}
        self._over: set[str] = set()

    def read(self) -> list[RunSnapshot]:
        """Return the live runs, oldest first."""
        live = []
        for folder in run_folders(home() / "runs"):
            name = folder.name
            if name in self._over:
                continue
            file = self._files.setdefault(name, WatchedState(RunPaths(folder)))
            snapshot = file.read()
            if snapshot is None:
                continue  # it may just begin
            if file.is_over():
                self._over.add(name)
                del self._files[name]
            else:
                live.append(snapshot)
        return sorted(live, key=lambda run: run.started_at)


def describe(run: RunSnapshot, *, now: float) -> dict[str, Any]:
    """Return the facts of one run for JSON; numbers that are not known are None."""
    about = {
        "run": run.run,
        "name": run.name,
        "status": str(run.status),
        "elapsed_s": round(now - run.started_at, 3),
        "attempt": run.attempt,
        "tasks": len(run.tasks),
    }
    return about | figures_of(run).to_json()


def watch(runs: LiveRuns, terminal: Terminal) -> None:
    """Show the table at the bottom of the screen until q or Ctrl-C."""
    keyboard = Keyboard()
    job_control = JobControl(terminal, keyboard, lambda: None)
    job_control.install()
    try:
        with tidied_at_end(terminal), contextlib.suppress(KeyboardInterrupt):
            while True:
                job_control.stop_if_asked()
                terminal.show_footer(_lines(runs.read(), *terminal.footer_size))
                if "q" in keyboard.read(_REFRESH_S).lower():
                    break
    finally:
        keyboard.release()
        job_control.restore()


def _lines(runs: Sequence[RunSnapshot], columns: int, rows: int) -> list[Text]:
    if not runs:
        return [Text("no run is live; q or Ctrl-C leaves", "dim")]
    room = 2 * rows - 2
    shown = runs[-room:]
    grid = runs_grid(shown, now=time.time(), live=True)
    lines = part_texts(grid, columns)[: room + 1]
    lines[0].stylize("dim")
    if len(runs) > len(shown):
        lines.append(Text(f"and {len(runs) - len(shown):,} older runs", "dim"))
    return lines
