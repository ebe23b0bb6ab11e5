"""`tfcluster compare`: show runs beside each other in a table."""

from __future__ import annotations

import time

import click

from tfcluster.cli.completion import run_names
from tfcluster.errors import UsageError


@click.command("compare")
@click.argument("runs", metavar="RUN RUN...", nargs=-1, required=True, shell_complete=run_names)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array with an object a run.")
def command(runs: tuple[str, ...], as_json: bool) -> None:
    """Compare two to six runs: how they ended, their results, and how their specs differ."""
    from tfcluster.rundir import registry
    from tfcluster.ui.render import UNLIMITED, stdout_text
    from tfcluster.ui.terminal import Terminal
    from tfcluster.web.comparison import MOST_RUNS, compare

    found = list(dict.fromkeys(registry.resolve(run) for run in runs))
    if not 2 <= len(found) <= MOST_RUNS:
        raise UsageError(
            f"compare takes 2 to {MOST_RUNS} different runs, not {len(found)}",
            fix="`tfcluster ps -a` lists all runs",
        )
    terminal, comparison = Terminal(), compare(found, now=time.time())
    if as_json:
        terminal.emit_json(comparison.to_json())
    else:
        tables = comparison.tables(terminal.stdout.width() or UNLIMITED)
        terminal.out("\n\n".join(stdout_text(table, terminal) for table in tables))
