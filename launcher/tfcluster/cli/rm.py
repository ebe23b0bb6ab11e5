"""`tfcluster rm`: delete the folders of runs that have ended."""

from __future__ import annotations

import click

from tfcluster.api import get_run
from tfcluster.cli.completion import run_names
from tfcluster.cli.down import collecting_errors
from tfcluster.errors import NodeLostError, SetupError
from tfcluster.ui.terminal import Terminal


@click.command("rm")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=run_names)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of the deleted runs.")
def command(runs: tuple[str, ...], as_json: bool) -> None:
    """Delete the folders of RUNs: logs, checkpoints, outputs. Live runs are refused."""
    terminal = Terminal()
    selected = dict.fromkeys(map(get_run, runs))
    for run in selected:
        run.require_ended()
    deleted, errors = list[str](), list[SetupError]()
    for run in selected:
        with collecting_errors(errors):
            run.delete(say=terminal.say_wrapped)
            terminal.say(f"deleted {run.id}")
            deleted.append(run.id)
    if as_json:
        terminal.emit_json(deleted)
    NodeLostError.raise_all(errors)
