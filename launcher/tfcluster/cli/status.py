"""`tfcluster status`: show one run: its tasks, their progress, what went wrong."""

from __future__ import annotations

import time
from socket import gethostname

import click

from tfcluster.backends import job_watch
from tfcluster.cli.completion import run_names
from tfcluster.cli.elsewhere import find_run, scheduler_options
from tfcluster.rundir.figures import state_json
from tfcluster.ui.panels import status_panel
from tfcluster.ui.render import stdout_text
from tfcluster.ui.terminal import Terminal


@click.command("status")
@click.argument("run", required=False, shell_complete=run_names)
@click.option("--json", "as_json", is_flag=True, help="Print the run's state as one JSON object.")
@scheduler_options
def command(
    run: str | None,
    as_json: bool,
    backend: str | None,
    context: str | None,
    namespace: str | None,
) -> None:
    """Show one run (default: the latest): its tasks, progress, diagnosis."""
    terminal = Terminal()
    found = find_run(run, backend, context, namespace)
    state = found.state()
    if as_json:
        terminal.emit_json(state_json(state) | {"folder": str(found.folder)})
    else:
        panel = status_panel(
            state,
            found.paths,
            now=time.time(),
            this_host=gethostname(),
            has_curves=found.paths.has_curves(),
        )
        terminal.out(stdout_text(panel, terminal))
    for sentence in job_watch.silences():
        terminal.say_wrapped(sentence)
