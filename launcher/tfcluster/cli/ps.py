"""`tfcluster ps`: list the runs, and what else needs attention: damaged, lost, kept warm."""

from __future__ import annotations

import time
from socket import gethostname
from typing import Any

import click

from tfcluster.backends import job_watch, past_runs
from tfcluster.backends.local import warm_agents
from tfcluster.rundir import registry
from tfcluster.rundir.paths import runtime_dir
from tfcluster.rundir.states import Status
from tfcluster.ui.formats import plural
from tfcluster.ui.panels import runs_grid
from tfcluster.ui.render import stdout_text
from tfcluster.ui.terminal import Terminal


@click.command("ps")
@click.option("-a", "--all", "all_runs", is_flag=True, help="Include runs that have ended.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of states.")
def command(all_runs: bool, as_json: bool) -> None:
    """List live runs, oldest first."""
    terminal, survey = Terminal(), job_watch.list_runs()
    known, damaged = [snapshot for _, snapshot in survey.runs], survey.damaged
    shown = [run for run in known if all_runs or not run.status.is_final]
    if as_json:
        rows = [run.to_json() for run in shown]
        terminal.emit_json(rows + [_damaged_json(error) for error in damaged if all_runs])
    elif shown:
        width = terminal.stdout.width()
        grid = runs_grid(shown, now=time.time(), this_host=gethostname(), width=width)
        terminal.out(stdout_text(grid, terminal))
    else:
        ended = f" ({plural(len(known), 'run')} ended: `tfcluster ps -a`)" if known else ""
        terminal.say(f"no run is live{ended}")
    for sentence in job_watch.silences():
        terminal.say_wrapped(sentence)
    for error in damaged:
        name = error.paths.run_id
        terminal.say_wrapped(
            f"{name} is damaged, {error.paths.state.name} cannot be read: {error.why};"
            f" `tfcluster rm {name[-4:]}` removes it"
        )
    for process in warm_agents.find(runtime_dir()):
        minutes = process.seconds / 60
        terminal.say_wrapped(
            f"kept warm for {minutes:.0f} min more: the imports of {process.about}"
            f" (pid {process.pid}); `tfcluster down --warm` ends it"
        )
    for run in known:
        if run.status is Status.LOST and registry.is_open(run):
            terminal.say_wrapped(
                f"{run.run} is lost: `tfcluster down {run.run[-4:]}` cleans up after it"
            )
    found = past_runs.find_leftovers()
    for silent in found.silent:
        terminal.say_wrapped(str(silent))
    for left in found.leftovers:
        names = ", ".join(left.names)
        terminal.say_wrapped(
            f"{left.place.backend} still has {names}: `tfcluster down {left.run_id}` removes them"
        )


def _damaged_json(error: registry.DamagedRunError) -> dict[str, Any]:
    return {"run": error.paths.run_id, "status": "damaged", "problem": error.why, "tasks": []}
