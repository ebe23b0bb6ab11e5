"""`tfcluster status`: one run, its tasks, how far they are, what went wrong."""

from __future__ import annotations

import time
from socket import gethostname

import click

from tfcluster.cli.completion import files
from tfcluster.rundir import registry
from tfcluster.ui.panels import status_panel
from tfcluster.ui.render import stdout_text
from tfcluster.ui.terminal import Terminal


@click.command("status")
@click.argument("run", required=False, shell_complete=files)
@click.option("--json", "as_json", is_flag=True, help="The run's state as one JSON object.")
def command(run: str | None, as_json: bool) -> None:
    """Show one run (default: the latest): its tasks, progress, diagnosis."""
    terminal = Terminal()
    paths = registry.resolve(run)
    snapshot = registry.load(paths)
    if as_json:
        terminal.emit_json(snapshot.to_json() | {"folder": str(paths.root)})
    else:
        terminal.out(
            stdout_text(
                status_panel(snapshot, paths, now=time.time(), here=gethostname()), terminal
            )
        )
