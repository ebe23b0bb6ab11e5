"""`tfcluster top`: all live runs with their progress, refreshed in place."""

from __future__ import annotations

import time

import click

from tfcluster.backends import job_watch
from tfcluster.ui.terminal import Terminal


@click.command("top")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of live runs, once.")
def command(as_json: bool) -> None:
    """Show all live runs: progress, loss, speed, memory and processor use.

    On a terminal the table is refreshed until q or Ctrl-C; elsewhere it is printed once.
    """
    from tfcluster.ui.live.overview import LiveRuns, describe, overview_grid, watch

    terminal, runs = Terminal(), LiveRuns()
    is_live = terminal.stdout.is_tty and terminal.has_footer and not as_json
    if not is_live:
        job_watch.list_runs()  # the table shows what schedulers have said so far
    if as_json:
        terminal.emit_json([describe(run, now=time.time()) for run in runs.read()])
    elif is_live:
        watch(runs, terminal)
    else:
        from tfcluster.ui.render import stdout_text

        terminal.out(stdout_text(overview_grid(runs.read(), now=time.time()), terminal))
