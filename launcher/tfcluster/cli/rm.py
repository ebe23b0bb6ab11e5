"""`tfcluster rm`: delete the folders of runs that have ended."""

from __future__ import annotations

import click

from tfcluster.api import get_run
from tfcluster.backends import past_runs
from tfcluster.cli.completion import run_names
from tfcluster.cli.down import collecting_errors
from tfcluster.errors import NodeLostError, SetupError
from tfcluster.rundir.paths import RunPaths
from tfcluster.ui.terminal import Terminal


@click.command("rm")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=run_names)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of the deleted runs.")
def command(runs: tuple[str, ...], as_json: bool) -> None:
    """Delete the folders of RUNs: logs, checkpoints, outputs. Live runs are refused.

    A run whose folder is gone is forgotten, with what a cluster may have of it that cannot be
    asked.
    """
    terminal = Terminal()
    gone = [run for run in dict.fromkeys(runs) if _is_forgettable(run)]
    selected = dict.fromkeys(get_run(run) for run in runs if run not in gone)
    for run in selected:
        run.require_ended()
    deleted, errors = list[str](), list[SetupError]()
    for name in gone:
        with collecting_errors(errors):
            _forget(name, terminal)
            deleted.append(name)
    for run in selected:
        with collecting_errors(errors):
            run.delete(say=terminal.say_wrapped)
            terminal.say(f"deleted {run.id}")
            deleted.append(run.id)
    if as_json:
        terminal.emit_json(deleted)
    NodeLostError.raise_all(errors)


def _is_forgettable(run: str) -> bool:
    """Return whether only a note about leftovers is left of a run."""
    return past_runs.is_noted(run) and not RunPaths.of(run).root.exists()


def _forget(run: str, terminal: Terminal) -> None:
    """Forget a run without a folder. Raises NodeLostError if its backend has something of it."""
    for sentence in past_runs.forget_removed(run):
        terminal.say_wrapped(sentence)
    if past_runs.is_noted(run):
        fix = f"`tfcluster down {run}` removes it"
        raise NodeLostError(f"there is still something of {run}", fix=fix)
    terminal.say(f"forgot {run}")
