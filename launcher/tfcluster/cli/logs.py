"""`tfcluster logs`: show the output of a run's tasks, or follow it with -f."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from datetime import time as clock_time

import click

from tfcluster.backends import job_watch
from tfcluster.cli.completion import run_names, task_names
from tfcluster.cli.elsewhere import SchedulerChoice, scheduler_options
from tfcluster.cli.ending import UNITS_S
from tfcluster.errors import UsageError
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.task_logs import end_of_lines, find_label, newest_attempts, rank
from tfcluster.ui.follow import RunView, line_style_for
from tfcluster.ui.formats import plural
from tfcluster.ui.merged_logs import LineStyle, LogFilter, MergedLogs
from tfcluster.ui.terminal import Terminal

_AGO = re.compile(rf"(\d+(?:\.\d+)?)([{''.join(UNITS_S)}])")
_PAUSE_S = 0.1


@click.command("logs")
@click.argument("run", required=False, shell_complete=run_names)
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
@click.option("--time", "times", is_flag=True, help="Begin each line with its time.")
@click.option("--collapse", is_flag=True, help="Show identical lines of several tasks once.")
@click.option("--all", "native", is_flag=True,
              help="Show TensorFlow's native start lines on a screen too.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True,
              help="Write one JSON object per line: time, task, attempt, line.")  # fmt: skip
@scheduler_options
def command(
    run: str | None,
    follow: bool,
    tasks: tuple[str, ...],
    grep: str | None,
    attempt: int | None,
    tail: int | None,
    since: str | None,
    times: bool,
    collapse: bool,
    native: bool,
    as_json: bool,
    choice: SchedulerChoice,
) -> None:
    """Show or follow the output of the tasks of RUN (default: the latest run)."""
    if collapse and (as_json or times):
        other = "--json" if as_json else "--time"
        raise UsageError(f"--collapse and {other} exclude each other", fix="leave out one")
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
    )
    if as_json:
        is_over = job_watch.StateFile(paths).is_over
        merged = MergedLogs(paths, log_filter, LineStyle(as_json=True))
        _emit(merged, terminal, is_over=lambda: not follow or is_over())
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
        view.run(is_over=job_watch.StateFile(paths).is_over)
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
        text = f"{plural(omitted, 'start line')} of TensorFlow not shown: --all shows all lines"
        terminal.say_wrapped(text, "dim")


def _emit(merged: MergedLogs, terminal: Terminal, *, is_over: Callable[[], bool]) -> None:
    """Write the lines until the run ends or stdout is closed."""
    while not is_over():
        if not all(map(terminal.out_lines, merged.advance())):
            return
        time.sleep(_PAUSE_S)
    for block in merged.drain():
        terminal.out_lines(block)


def parse_moment(text: str, now: float | None = None) -> float:
    """Return the Unix time of ``5m`` (ago), ``14:30`` (the latest), ``2026-09-14 14:30``.

    Raises UsageError if `text` is none of these.
    """
    moment = datetime.now() if now is None else datetime.fromtimestamp(now)
    if ago := _AGO.fullmatch(text.strip()):
        return moment.timestamp() - float(ago[1]) * UNITS_S[ago[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):  # no date, or one before the years that a clock knows
        pass
    try:
        clock = clock_time.fromisoformat(text.strip())
        today = moment if clock.tzinfo is None else moment.astimezone(clock.tzinfo)
        found = datetime.combine(today, clock)
    except ValueError as error:
        raise UsageError(
            f"--since: {text!r} is no time",
            fix="write how long ago (90s, 5m, 2h, 1d), a time (14:30), or both date and time"
            " ('2026-09-14 14:30')",
        ) from error
    return (found if found <= today else found - timedelta(days=1)).timestamp()


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
