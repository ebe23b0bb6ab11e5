"""`tfcluster scale-to`: change the number of workers of a live run."""

from __future__ import annotations

import click

from tfcluster.api import get_run
from tfcluster.cli.completion import live_runs
from tfcluster.ui.terminal import Terminal


@click.command("scale-to")
@click.argument("run", shell_complete=live_runs)
@click.argument("workers", type=click.IntRange(min=1))
@click.option("--json", "as_json", is_flag=True, help="Print the answer as one JSON object.")
def command(run: str, workers: int, as_json: bool) -> None:
    """Have RUN go on with WORKERS workers (its chief counts): at most those of its spec.

    All tasks save, stop, and start again from the newest checkpoint. The highest-numbered workers
    leave first; they come back when you ask for more. Return once the run has accepted.
    """
    terminal = Terminal()
    found = get_run(run, live_only=True)
    answer = found.scale_to(workers)
    if as_json:
        terminal.emit_json({"run": found.id, "workers": workers, "answer": answer})
    else:
        terminal.say_wrapped(f"{found.id}: {answer}")
