"""`tfcluster ps`, `top`, `status`, `attach`, `logs`, `stacks`, `ui`: runs, live or past.

`show_end` shows how a run ended, for `attach` and for the commands that start one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import time
from collections.abc import Iterator
from socket import gethostname
from urllib.parse import urlsplit

import click

from tfcluster.backends import job_watch, past_runs
from tfcluster.backends.local import warm_agents
from tfcluster.checkpoints.store import load_hint, read_store
from tfcluster.cli.completion import live_runs, run_names, task_names
from tfcluster.cli.exec import TASK
from tfcluster.cli.options import parse_moment
from tfcluster.cli.scheduler_runs import Scheduler, SchedulerChoice, option_of, scheduler_options
from tfcluster.errors import RunFolderError, UsageError, require_extra
from tfcluster.rundir import registry
from tfcluster.rundir.figures import state_json
from tfcluster.rundir.paths import RunPaths, home, runtime_dir
from tfcluster.rundir.registry import RunListing
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status
from tfcluster.rundir.task_logs import end_of_lines, find_label, newest_attempts, rank
from tfcluster.ui import history
from tfcluster.ui.follow import Leaving, RunView, line_style_for
from tfcluster.ui.formats import plural
from tfcluster.ui.job_control import tidied_at_end
from tfcluster.ui.log_excerpt import excerpt
from tfcluster.ui.merged_logs import LineStyle, LogFilter, MergedLogs
from tfcluster.ui.overview import LiveRuns, describe, watch
from tfcluster.ui.panels import closing_panel, root_cause_panel, runs_grid, status_panel
from tfcluster.ui.render import part_lines, show, stdout_text
from tfcluster.ui.terminal import Terminal

_LINES_BEFORE = 10
_PAUSE_S = 0.1


@click.command("ps")
@click.option("-a", "--all", "all_runs", is_flag=True, help="Include runs that have ended.")
@click.option("-w", "--watch", "watches", is_flag=True, help="Watch the live runs, as `top` does.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of states.")
@scheduler_options
def ps(all_runs: bool, watches: bool, as_json: bool, choice: SchedulerChoice) -> None:
    """List live runs, oldest first.

    With --backend, list the runs that a scheduler has, whichever machine submitted them.
    """
    if scheduler := choice.scheduler({"--all": all_runs, "--watch": watches}):
        _list_elsewhere(scheduler, as_json=as_json)
        return
    if watches and all_runs:
        fix = "`tfcluster ps -a` lists the runs that have ended, too, once"
        raise UsageError("--watch shows live runs only, without --all", fix=fix)
    if watches:
        _watch_live(as_json=as_json)
        return
    terminal, survey = Terminal(), job_watch.list_runs()
    known = [snapshot for _, snapshot in survey.runs]
    shown = [run for run in known if all_runs or not run.status.is_final]
    if as_json:
        damaged = [
            {"run": error.paths.run_id, "status": "damaged", "problem": error.why, "tasks": []}
            for error in survey.damaged
            if all_runs
        ]
        terminal.emit_json([run.to_json() for run in shown] + damaged)
    elif shown:
        grid = runs_grid(shown, now=time.time(), this_host=gethostname())
        terminal.out(stdout_text(grid, terminal))
    else:
        ended = f" ({plural(len(known), 'run')} ended: `tfcluster ps -a`)" if known else ""
        terminal.say(f"no run is live{ended}")
    for sentence in _remarks(survey):
        terminal.say_wrapped(sentence)


def _list_elsewhere(scheduler: Scheduler, *, as_json: bool) -> None:
    terminal, states = Terminal(), sorted(scheduler.runs().items())
    if as_json:
        terminal.emit_json(
            [
                {"run": run, "job": state.job, "phase": str(state.phase), "reason": state.reason}
                for run, state in states
            ]
        )
        return
    for run, state in states:
        terminal.out(f"{run}  {state.phase}{': ' if state.reason else ''}{state.reason}")
    if not states:
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
    past = past_runs.find_leftovers()
    missed = {run.run for _, run in survey.runs if run.missed}
    yield from (f"{silent}; {silent.fix}" for silent in past.silent)
    for left in past.leftovers:
        what_to_do = f": `tfcluster down {left.run_id}` removes them"
        if left.run_id in missed:
            what_to_do = f", with the newest checkpoint of {left.run_id}: `tfcluster checkpoints"
            what_to_do += f" {left.run_id}` gathers it"
        yield f"{left.place.backend} still has {', '.join(left.names)}{what_to_do}"


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
    elif live := runs.read():
        terminal.out(stdout_text(runs_grid(live, now=time.time(), live=True), terminal))
    else:
        terminal.say("no run is live")


@click.command("status")
@click.argument("run", required=False, shell_complete=run_names)
@click.option("--json", "as_json", is_flag=True, help="Print the run's state as one JSON object.")
@scheduler_options
def status(run: str | None, as_json: bool, choice: SchedulerChoice) -> None:
    """Show one run (default: the latest): its tasks, progress, diagnosis."""
    terminal = Terminal()
    chosen = choice.find_run(run)
    state = chosen.state()
    if as_json:
        terminal.emit_json(state_json(state) | {"folder": str(chosen.folder)})
    else:
        panel = status_panel(
            state,
            chosen.paths,
            now=time.time(),
            this_host=gethostname(),
            has_curves=chosen.paths.has_curves(),
            can_restart=_has_checkpoint(state, chosen.paths),
        )
        terminal.out(stdout_text(panel, terminal))
    for sentence in job_watch.silences():
        terminal.say_wrapped(sentence)


@click.command("attach")
@click.argument("run", required=False, shell_complete=live_runs)
@click.option("--collapse", is_flag=True, help="Show identical lines of several tasks once.")
@click.option("--native-logs", is_flag=True, help="Show TensorFlow's native start lines too.")
@click.option("--json", "as_json", is_flag=True,
              help="Write events to stdout, task output to stderr.")  # fmt: skip
@scheduler_options
def attach(
    run: str | None, collapse: bool, native_logs: bool, as_json: bool, choice: SchedulerChoice
) -> None:
    """Watch RUN (default: the only live run) until it ends; d or Ctrl-C detaches.

    The run continues then. Starts with the last lines of each task. The exit code is 0 however the
    run ends; `wait` returns the run's own exit code.
    """
    terminal = Terminal()
    live = choice.find_run(run, live_only=True)
    paths, state = live.paths, live.state()
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
        leaving=Leaving(
            leave=functools.partial(signal.raise_signal, signal.SIGINT),
            ctrl_c="detach, like d",
            closing="leaves the run",
        ),
    )
    try:
        with tidied_at_end(terminal):
            view.run(is_over=job_watch.WatchedState(paths).is_over)
    except KeyboardInterrupt:
        short = state.run[-4:] + option_of(paths, (state.job or {}).get("backend", ""))
        terminal.say_wrapped(
            f"detached; {state.run} keeps running: `tfcluster attach {short}` shows it again,"
            f" `tfcluster down {short}` stops it"
        )
        return
    if not as_json and paths.root.exists():
        show_end(live.state(), paths, terminal)


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
    run, task = _split_task(run, task)
    live = SchedulerChoice().find_run(run, live_only=True)
    answer = live.stacks(*([task] if task is not None else []))
    if as_json:
        terminal.emit_json({"run": live.id, **answer})
    else:
        terminal.out("\n".join(history.format_stacks(answer, all_threads=all_threads)))


def _split_task(run: str | None, task: str | None) -> tuple[str | None, str | None]:
    """Return RUN and TASK of a command line that may have only TASK: ``logs worker:1``."""
    if task is None and run is not None and TASK.fullmatch(run):
        return None, run
    return run, task


def _has_checkpoint(state: RunSnapshot, paths: RunPaths) -> bool:
    """Return whether a run that has ended has a checkpoint, or may have one in its shared folder.

    Nothing is gathered from `checkpoints.dir`: a restart reads it again.
    """
    if state.checkpoints or not state.status.is_final:
        return bool(state.checkpoints)
    with contextlib.suppress(RunFolderError):  # a damaged run is shown all the same
        return registry.load_plan(paths).checkpoints.dir is not None
    return False


def show_end(
    state: RunSnapshot, paths: RunPaths, terminal: Terminal, *, with_reason: bool = True
) -> None:
    """Print root cause and summary to stderr.

    `with_reason`: False where the reason is also the error that the command ends with.
    """
    checkpoints = read_store(paths.checkpoints)[0]
    hint = load_hint(checkpoints[-1]) if checkpoints else ""
    log = history.log_of_cause(state)
    if cause := root_cause_panel(state, paths, excerpt(paths.root / log) if log else ()):
        show(cause, terminal)
    panel = closing_panel(
        *(state, paths),
        load_hint=hint,
        home_bytes=registry.count_bytes(home()),
        has_curves=paths.has_curves(),
        can_restart=_has_checkpoint(state, paths),
    )
    show(panel, terminal)
    if with_reason:
        for part in history.format_reason(state):
            terminal.say("\n".join(part_lines(part, terminal.width)))


@click.command("logs")
@click.argument("run", required=False, shell_complete=run_names)
@click.argument("task", required=False)
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the run ends.")
@click.option("--task", "tasks", multiple=True, metavar="TASK", shell_complete=task_names,
              help="Only this task (worker:1, prepare); may be repeated.")  # fmt: skip
@click.option("--grep", metavar="REGEX", help="Only lines that match REGEX.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N",
              help="Only attempt N (default: each task's latest).")  # fmt: skip
@click.option("--tail", type=click.IntRange(min=0), metavar="N",
              help="Start with the last N lines of each task.")  # fmt: skip
@click.option("--since", metavar="WHEN",
              help="Only lines since then: 5m, 2h (ago), 14:30, '2026-09-14 14:30'.")  # fmt: skip
@click.option("--by-task", is_flag=True, help="Show one task after the other, not by time.")
@click.option("--time", "times", is_flag=True, help="Begin each line with its time.")
@click.option("--collapse", is_flag=True, help="Show identical lines of several tasks once.")
@click.option("--native-logs", "--all", "native", is_flag=True,
              help="Show TensorFlow's native start lines too.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True,
              help="Write one JSON object per line: time, task, attempt, line.")  # fmt: skip
@scheduler_options
def logs(
    run: str | None,
    task: str | None,
    follow: bool,
    tasks: tuple[str, ...],
    grep: str | None,
    attempt: int | None,
    tail: int | None,
    since: str | None,
    by_task: bool,
    times: bool,
    collapse: bool,
    native: bool,
    as_json: bool,
    choice: SchedulerChoice,
) -> None:
    """Show or follow the output of the tasks of RUN (default: the latest run), or only of TASK.

    Lines stand in the order of their times.
    """
    if collapse and (as_json or times):
        other = "--json" if as_json else "--time"
        raise UsageError(f"--collapse and {other} exclude each other", fix="leave out one")
    run, task = _split_task(run, task)
    tasks = tasks if task is None else (*tasks, task)
    terminal, paths = Terminal(), choice.find_run(run).paths
    log_filter = LogFilter(
        tasks=[find_label(registry.load(paths), task) for task in tasks],
        grep=_compile(grep),
        first_attempt=attempt or 0,
        first_of={} if attempt else _find_newest(paths, tasks, terminal),
        last_attempt=attempt,
        since=None if since is None else parse_moment(since),
        tail=tail,
        failed=_find_failed(paths),
        by_task=by_task,
    )
    is_over = job_watch.WatchedState(paths).is_over
    if as_json:
        merged = MergedLogs(paths, log_filter, LineStyle(as_json=True))
        while follow and not is_over():
            if not all(map(terminal.out_lines, merged.catch_up())):
                return
            time.sleep(_PAUSE_S)
        _print(merged, terminal)
    elif follow:
        view = RunView(
            paths,
            terminal,
            log_filter=log_filter,
            collapse=collapse,
            native=native,
            times=times,
            shows_messages=False,
            events_offset=end_of_lines(paths.events),
        )
        view.run(is_over=is_over)
    else:
        style = line_style_for(terminal, terminal.stdout, collapse, native, times)
        _print(MergedLogs(paths, log_filter, style), terminal)
    for sentence in job_watch.silences():
        terminal.say_wrapped(sentence)


def _print(merged: MergedLogs, terminal: Terminal) -> None:
    for block in merged.drain():
        if not terminal.out_lines(block):
            return
    if omitted := merged.omitted():
        text = f"{plural(omitted, 'start line')} of TensorFlow not shown: --native-logs shows all"
        terminal.say_wrapped(text, "dim")


def _compile(regex: str | None) -> re.Pattern[bytes] | None:
    try:
        return re.compile(regex.encode(), re.MULTILINE) if regex is not None else None
    except re.error as error:
        raise UsageError(
            f"--grep: {regex!r} is not a regular expression: {error}",
            fix="put a backslash before special characters that are meant literally",
        ) from error


def _find_failed(paths: RunPaths) -> list[str]:
    state = registry.StateFile(paths).read()  # None for a damaged run, which still has its logs
    tasks = state.tasks if state is not None else []
    return [task.task for task in tasks if task.ended_by == "itself" and task.exit_code != 0]


def _find_newest(paths: RunPaths, tasks: tuple[str, ...], terminal: Terminal) -> dict[str, int]:
    """Return each task's newest attempt (prepare: 1), and print which if there are several."""
    newest = newest_attempts(paths.logs)
    shown = {label: at for label, at in newest.items() if at and (not tasks or label in tasks)}
    if max(shown.values(), default=1) > 1:
        which = "; ".join(_name_attempt(shown, number) for number in sorted(set(shown.values())))
        terminal.say_wrapped(f"{paths.run_id}: {which}. --attempt N shows another")
        newest |= {label: 1 for label in newest if label.startswith("prepare") and not tasks}
    return newest


def _name_attempt(shown: dict[str, int], number: int) -> str:
    labels = sorted((label for label, at in shown.items() if at == number), key=rank)
    names = "" if len(labels) == len(shown) else f" of {', '.join(labels)}"
    return f"attempt {number}{names}"


@click.command("ui")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N",
              help="Port on 127.0.0.1; 0: any (default: the first from 6020 on).")  # fmt: skip
@click.option("--open", "opens", is_flag=True, help="Open the page in your browser.")
@click.option("--read-only", is_flag=True, help="Show the runs, but let the page stop none.")
@click.option("--metrics-token", metavar="FILE",
              help="Let Prometheus read /metrics with the token in FILE; new: made.")  # fmt: skip
def ui(port: int | None, opens: bool, read_only: bool, metrics_token: str | None) -> None:
    """Show all runs, live and past, on a web page until Ctrl-C.

    The printed URL works on this machine only, and holds a key: who has it can read the logs of
    your runs, and stop them.
    """
    require_extra("ui", "starlette", "uvicorn")
    from tfcluster.web.serving import serve

    terminal = Terminal()

    def report(url: str) -> None:
        terminal.say("tfcluster ui: open this URL; Ctrl-C ends the page, the runs continue")
        terminal.out(url)
        if os.environ.get("SSH_CONNECTION"):
            place = f"{urlsplit(url).port}:127.0.0.1:{urlsplit(url).port}"
            terminal.say(f"from another machine, first: ssh -N -L {place} {gethostname()}")

    try:
        serve(
            home(), port=port, read_only=read_only, metrics_token=metrics_token, on_ready=report,
            browse=opens, say=terminal.say_wrapped,
        )  # fmt: skip
    except KeyboardInterrupt:
        terminal.say("")
