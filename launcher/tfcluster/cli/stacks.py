"""`tfcluster stacks`: show where the tasks of a live run are."""

from __future__ import annotations

import re

import click

from tfcluster.api import get_run
from tfcluster.cli.completion import live_runs
from tfcluster.ui.stack_lines import format_stacks
from tfcluster.ui.terminal import Terminal

_TASK = re.compile(r"[a-z]+:\d+")


@click.command("stacks")
@click.argument("run", required=False, shell_complete=live_runs)
@click.argument("task", required=False)
@click.option("--all-threads", is_flag=True, help="Show all threads, not only the main one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(run: str | None, task: str | None, all_threads: bool, as_json: bool) -> None:
    """Show where the tasks of RUN (default: the only live one), or only TASK, are.

    The first line says who is waited for. The training goes on; the stacks of all threads are in
    the logs, too.
    """
    terminal = Terminal()
    if task is None and run is not None and _TASK.fullmatch(run):
        run, task = None, run
    found = get_run(run, live_only=True)
    answer = found.stacks(*([task] if task is not None else []))
    if as_json:
        terminal.emit_json({"run": found.id, **answer})
    else:
        terminal.out("\n".join(format_stacks(answer, all_threads=all_threads)))
