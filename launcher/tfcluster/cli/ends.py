"""How a run ended, for whoever watched it: the root cause of a failure, then the summary."""

from __future__ import annotations

from tfcluster.checkpoints.loading import load_hint
from tfcluster.checkpoints.store import open_for_reading
from tfcluster.run import registry
from tfcluster.run.paths import RunPaths, home
from tfcluster.run.snapshot import RunSnapshot
from tfcluster.ui.panels import closing_panel, root_cause_panel
from tfcluster.ui.render import show
from tfcluster.ui.source import last_lines
from tfcluster.ui.story import log_of_cause
from tfcluster.ui.terminal import Terminal


def show_end(state: RunSnapshot, paths: RunPaths, terminal: Terminal) -> None:
    """To stderr."""
    held = open_for_reading(paths.checkpoints)
    hint = load_hint(held[-1]) if held else ""
    _show_root_cause(state, paths, terminal)
    size = registry.bytes_of(home())
    show(closing_panel(state, paths, load_hint=hint, home_bytes=size), terminal)


def _show_root_cause(state: RunSnapshot, paths: RunPaths, terminal: Terminal) -> None:
    log = log_of_cause(state)
    lines = last_lines(paths.root / log) if log else ()
    if panel := root_cause_panel(state, paths, lines):
        show(panel, terminal)
