"""`tfcluster ps`, `top`, `status`, `attach`, `stacks`: runs, from a line for each to a live view.

`show_end` shows how a run ended, for `attach` and for the commands that start one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from socket import gethostname
from typing import Any

import click

from tfcluster.backends import job_watch, past_runs
from tfcluster.backends.local import warm_agents
from tfcluster.checkpoints.store import load_hint, open_for_reading
from tfcluster.cli.completion import live_runs, run_names
from tfcluster.cli.elsewhere import Scheduler, SchedulerChoice, option_of, scheduler_options
from tfcluster.rundir import registry
from tfcluster.rundir.figures import state_json
from tfcluster.rundir.paths import RunPaths, home, runtime_dir
from tfcluster.rundir.registry import RunListing
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status
from tfcluster.rundir.task_logs import end_of_lines, newest_attempts
from tfcluster.ui import history
from tfcluster.ui.excerpt import excerpt
from tfcluster.ui.follow import RunView
from tfcluster.ui.formats import plural
from tfcluster.ui.merged_logs import LogFilter
from tfcluster.ui.overview import LiveRuns, describe, watch
from tfcluster.ui.panels import closing_panel, root_cause_panel, runs_grid, status_panel
from tfcluster.ui.render import part_lines, show, stdout_text
from tfcluster.ui.stack_lines import format_stacks
from tfcluster.ui.terminal import Terminal

_LINES_BEFORE = 10
_TASK = re.compile(r"[a-z]+:\d+")


@click.command("ps")
@click.option("-a", "--all", "all_runs", is_flag=True, help="Include runs that have ended.")
@click.option("-w", "--watch", "watches", is_flag=True, help="Watch the live runs, as `top` does.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of states.")
@scheduler_options
def ps(
    all_runs: bool,
    watches: bool,
    as_json: bool,
    choice: SchedulerChoice,
) -> None:
    """List live runs, oldest first.

    With --backend, list the runs that a scheduler has, whichever machine submitted them.
    """
    if scheduler := choice.scheduler({"--all": all_runs, "--watch": watches}):
        _list_elsewhere(scheduler, as_json=as_json)
        return
    if watches:
        _watch_live(as_json=as_json)
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


@click.command("top")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of live runs, once.")
def top(as_json: bool) -> None:
    """Show all live runs: progress, loss, speed, memory and processor use.

    On a terminal the table is refreshed until q or Ctrl-C; elsewhere it is printed once.
    """
    _watch_live(as_json=as_json)


def _watch_live(*, as_json: bool) -> None:
    terminal, runs = Terminal(), LiveRuns()
    is_live = terminal.stdout.is_tty and terminal.has_footer and not as_json
    if not is_live:
        job_watch.list_runs()  # the table shows what schedulers have said so far
    if as_json:
        terminal.emit_json([describe(run, now=time.time()) for run in runs.read()])
    elif is_live:
        watch(runs, terminal)
    else:
        terminal.out(stdout_text(runs_grid(runs.read(), now=time.time(), live=True), terminal))


@click.command("status")
@click.argument("run", required=False, shell_complete=run_names)
@click.option("--json", "as_json", is_flag=True, help="Print the run's state as one JSON object.")
@scheduler_options
def status(
    run: str | None,
    as_json: bool,
    choice: SchedulerChoice,
) -> None:
    """Show one run (default: the latest): its tasks, progress, diagnosis."""
    terminal = Terminal()
    found = choice.find_run(run)
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


@click.command("attach")
@click.argument("run", required=False, shell_complete=live_runs)
@click.option("--collapse", is_flag=True, help="Show identical lines of several tasks once.")
@click.option("--native-logs", is_flag=True,
              help="Show TensorFlow's native start lines on a screen too.")  # fmt: skip
@click.option(
    "--json", "as_json", is_flag=True, help="Write events to stdout, task output to stderr."
)
@scheduler_options
def attach(
    run: str | None,
    collapse: bool,
    native_logs: bool,
    as_json: bool,
    choice: SchedulerChoice,
) -> None:
    """Watch RUN (default: the only live run) until it ends; Ctrl-C detaches, the run continues.

    Starts with the last lines of each task. The exit code is 0 however the run ends; `wait`
    returns the run's own exit code.
    """
    terminal = Terminal()
    found = choice.find_run(run, live_only=True)
    paths, state = found.paths, found.state()
    if state.status.is_final and not as_json:
        terminal.say(f"{state.run} has ended")
        show_end(state, paths, terminal)
        return
    if not as_json:
        terminal.say_wrapped(history.format_attached(state))
        if state.restarts:
            terminal.say_wrapped(history.format_restart(state.restarts[-1]), "yellow")
    view = RunView(
        paths,
        terminal,
        json_lines=as_json,
        log_filter=LogFilter(first_of=newest_attempts(paths.logs), tail=_LINES_BEFORE),
        collapse=collapse,
        native=native_logs,
        events_offset=0 if as_json else end_of_lines(paths.events),
    )
    try:
        view.run(is_over=job_watch.StateFile(paths).is_over)
    except KeyboardInterrupt:
        terminal.clear_footer()
        short = state.run[-4:] + option_of(paths, (state.job or {}).get("backend", ""))
        terminal.say_wrapped(
            f"detached; {state.run} keeps running: `tfcluster attach {short}` shows it again,"
            f" `tfcluster down {short}` stops it"
        )
        return
    if not as_json and paths.root.exists():
        show_end(found.state(), paths, terminal)


@click.command("stacks")
@click.argument("run", required=False, shell_complete=live_runs)
@click.argument("task", required=False)
@click.option("--all-threads", is_flag=True, help="Show all threads, not only the main one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def stacks(run: str | None, task: str | None, all_threads: bool, as_json: bool) -> None:
    """Show where the tasks of RUN (default: the only live one), or only TASK, are.

    The first line says who is waited for. The training goes on; the stacks of all threads are in
    the logs, too.
    """
    terminal = Terminal()
    if task is None and run is not None and _TASK.fullmatch(run):
        run, task = None, run
    found = SchedulerChoice().find_run(run, live_only=True)
    answer = found.stacks(*([task] if task is not None else []))
    if as_json:
        terminal.emit_json({"run": found.id, **answer})
    else:
        terminal.out("\n".join(format_stacks(answer, all_threads=all_threads)))


def show_end(
    state: RunSnapshot, paths: RunPaths, terminal: Terminal, *, with_reason: bool = True
) -> None:
    """Print root cause and summary to stderr.

    `with_reason`: False where the reason is also the error that the command ends with.
    """
    checkpoints = open_for_reading(paths.checkpoints)
    hint = load_hint(checkpoints[-1]) if checkpoints else ""
    _show_root_cause(state, paths, terminal)
    size = registry.count_bytes(home())
    panel = closing_panel(
        state, paths, load_hint=hint, home_bytes=size, has_curves=paths.has_curves()
    )
    show(panel, terminal)
    for part in history.format_reason(state) if with_reason else ():
        terminal.say("\n".join(part_lines(part, terminal.width)))


def _show_root_cause(state: RunSnapshot, paths: RunPaths, terminal: Terminal) -> None:
    log = history.log_of_cause(state)
    lines = excerpt(paths.root / log) if log else ()
    if panel := root_cause_panel(state, paths, lines):
        show(panel, terminal)
