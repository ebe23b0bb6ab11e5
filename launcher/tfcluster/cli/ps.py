"""`tfcluster ps`: list the runs, and what else needs attention: damaged, lost, kept warm."""

from __future__ import annotations

import time
from collections.abc import Iterator
from socket import gethostname
from typing import Any

import click

from tfcluster.backends import job_watch, past_runs
from tfcluster.backends.local import warm_agents
from tfcluster.cli.elsewhere import Scheduler, scheduler_of, scheduler_options
from tfcluster.rundir import registry
from tfcluster.rundir.paths import runtime_dir
from tfcluster.rundir.registry import RunListing
from tfcluster.rundir.states import Status
from tfcluster.ui.formats import plural
from tfcluster.ui.panels import runs_grid
from tfcluster.ui.render import stdout_text
from tfcluster.ui.terminal import Terminal


@click.command("ps")
@click.option("-a", "--all", "all_runs", is_flag=True, help="Include runs that have ended.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of states.")
@scheduler_options
def command(
    all_runs: bool,
    as_json: bool,
    backend: str | None,
    context: str | None,
    namespace: str | None,
) -> None:
    """List live runs, oldest first.

    With --backend, list the runs that a scheduler has, whichever machine submitted them.
    """
    if (scheduler := scheduler_of(backend, context, namespace, all=all_runs)) is not None:
        _list_elsewhere(scheduler, as_json=as_json)
        return
    terminal, survey = Terminal(), job_watch.list_runs()
    known = [snapshot for _, snapshot in survey.runs]
    shown = [run for run in known if all_runs or not run.status.is_final]
    if as_json:
        rows = [run.to_json() for run in shown]
        terminal.emit_json(rows + [_damaged_json(error) for error in survey.damaged if all_runs])
    elif shown:
        width = terminal.stdout.width()
        grid = runs_grid(shown, now=time.time(), this_host=gethostname(), width=width)
        terminal.out(stdout_text(grid, terminal))
    else:
        ended = f" ({plural(len(known), 'run')} ended: `tfcluster ps -a`)" if known else ""
        terminal.say(f"no run is live{ended}")
    for sentence in _remarks(survey):
        terminal.say_wrapped(sentence)


def _list_elsewhere(scheduler: Scheduler, *, as_json: bool) -> None:
    terminal, found = Terminal(), sorted(scheduler.runs().items())
    if as_json:
        terminal.emit_json(
            [
                {"run": run, "job": s.job, "phase": str(s.phase), "reason": s.reason}
                for run, s in found
            ]
        )
        return
    for run, state in found:
        terminal.out(f"{run}  {state.phase}{': ' if state.reason else ''}{state.reason}")
    if not found:
        terminal.say("the scheduler knows no run of tfcluster")


def _remarks(survey: RunListing) -> Iterator[str]:
    """Yield what the list of runs does not show, and the command for it."""
    yield from job_watch.silences()
    for error in survey.damaged:
        name = error.paths.run_id
        yield (
            f"{name} is damaged, {error.paths.state.name} cannot be read: {error.why}; {error.fix}"
        )
    for process in warm_agents.find(runtime_dir()):
        yield (
            f"kept warm for {process.seconds / 60:.0f} min more: the imports of {process.about}"
            f" (pid {process.pid}); `tfcluster down --warm` ends it"
        )
    for _, run in survey.runs:
        if run.status is Status.LOST and registry.is_open(run):
            yield f"{run.run} is lost: `tfcluster down {run.run[-4:]}` cleans up after it"
    found = past_runs.find_leftovers()
    missed = {run.run for _, run in survey.runs if run.missed}
    yield from (f"{silent}; {silent.fix}" for silent in found.silent)
    for left in found.leftovers:
        names = ", ".join(left.names)
        if left.run_id in missed:
            yield (
                f"{left.place.backend} still has {names}, with the newest checkpoint of"
                f" {left.run_id}: `tfcluster checkpoints {left.run_id}` gathers it"
            )
            continue
        yield f"{left.place.backend} still has {names}: `tfcluster down {left.run_id}` removes them"


def _damaged_json(error: registry.DamagedRunError) -> dict[str, Any]:
    return {"run": error.paths.run_id, "status": "damaged", "problem": error.why, "tasks": []}
