"""`tfcluster wait`: wait for the end of a run."""

from __future__ import annotations

import time

import click

from tfcluster.cli.completion import files
from tfcluster.errors import NodeLostError
from tfcluster.run import registry
from tfcluster.ui.terminal import Terminal


@click.command("wait")
@click.argument("run", required=False, shell_complete=files)
@click.option("--json", "as_json", is_flag=True, help="The run's status as one JSON object.")
def command(run: str | None, as_json: bool) -> int:
    """Wait until RUN (default: the only live one) is over; exit with its exit code."""
    paths = registry.resolve(run, live_only=run is None)
    while not (state := registry.load(paths)).status.is_final:
        time.sleep(0.1)
    if as_json:
        facts = {"run": state.run, "status": str(state.status), "exit_code": state.exit_code}
        Terminal().emit_json(facts)
    if state.exit_code is None:
        raise NodeLostError(
            f"{state.run} is lost: its coordinator went away before the end",
            cure=f"`tfcluster logs {state.run}` shows what the tasks wrote,"
            f" `tfcluster down {state.run}` cleans up",
        )
    return state.exit_code
