"""Shows how a run ended: the root cause of a failure, then the summary."""

from __future__ import annotations

from tfcluster.checkpoints.store import load_hint, open_for_reading
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths, home
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.ui import history
from tfcluster.ui.excerpt import excerpt
from tfcluster.ui.panels import closing_panel, root_cause_panel
from tfcluster.ui.render import part_lines, show
from tfcluster.ui.terminal import Terminal


def show_end(
    state: RunSnapshot, paths: RunPaths, terminal: Terminal, *, with_reason: bool = True
) -> None:
    """Print root cause and summary to stderr.

    `with_reason`: False where the reason is also the error that the command ends with.
    """
    checkpoints = open_for_reading(paths.checkpoints)
    hint = load_hint(checkpoints[-1]) if checkpoints else ""
    _show_root_cause(state, paths, terminal)
    size = registry.count_bytes(home())
    panel = closing_panel(
        state, paths, load_hint=hint, home_bytes=size, has_curves=paths.has_curves()
    )
    show(panel, terminal)
    for part in history.format_reason(state) if with_reason else ():
        terminal.say("\n".join(part_lines(part, terminal.width)))


def _show_root_cause(state: RunSnapshot, paths: RunPaths, terminal: Terminal) -> None:
    log = history.log_of_cause(state)
    lines = excerpt(paths.root / log) if log else ()
    if panel := root_cause_panel(state, paths, lines):
        show(panel, terminal)
