"""`tfcluster logs`: show the output of a run's tasks, or follow it with -f."""

from __future__ import annotations

import codecs
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator

import click

from tfcluster.api import get_run
from tfcluster.cli.completion import files
from tfcluster.errors import UsageError
from tfcluster.rundir import registry
from tfcluster.rundir.log_files import find_label, newest_attempts, rank
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.tail import end_of_lines
from tfcluster.ui.follow import RunView, line_style_for
from tfcluster.ui.formats import plural
from tfcluster.ui.lines import escape_json
from tfcluster.ui.merged_logs import LogFilter, MergedLogs
from tfcluster.ui.terminal import Terminal

SEPARATOR = " │ "
"""Stands between task and line in the merged stream (`MergedLogs`)."""
_PAUSE_S = 0.1


@click.command("logs")
@click.argument("run", required=False, shell_complete=files)
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the run ends.")
@click.option("--task", "tasks", multiple=True, metavar="TASK",
              help="Only this task (worker:1, prepare); may be repeated.")  # fmt: skip
@click.option("--grep", metavar="REGEX", help="Only lines that match REGEX.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N",
              help="Only attempt N (default: each task's latest).")  # fmt: skip
@click.option("--tail", type=click.IntRange(min=0), metavar="N",
              help="Start with the last N lines of each task.")  # fmt: skip
@click.option("--collapse", is_flag=True, help="Show identical lines of several tasks once.")
@click.option("--all", "native", is_flag=True,
              help="Show TensorFlow's native start lines on a screen too.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True,
              help="Write one JSON object per line: task, line.")  # fmt: skip
def command(
    run: str | None,
    follow: bool,
    tasks: tuple[str, ...],
    grep: str | None,
    attempt: int | None,
    tail: int | None,
    collapse: bool,
    native: bool,
    as_json: bool,
) -> None:
    """Show or follow the output of the tasks of RUN (default: the latest run)."""
    terminal, paths = Terminal(), get_run(run).paths
    log_filter = LogFilter(
        tasks=[find_label(registry.load(paths), task) for task in tasks],
        grep=_compile(grep),
        first_attempt=attempt or 0,
        first_of={} if attempt else _find_newest(paths, tasks, terminal),
        last_attempt=attempt,
        tail=tail,
        failed=_find_failed(paths),
    )
    if as_json:
        if collapse:
            raise UsageError("--collapse and --json exclude each other", fix="leave out one")
        is_over = registry.StateFile(paths).is_over
        _emit(MergedLogs(paths, log_filter), terminal, is_over=lambda: not follow or is_over())
    elif follow:
        view = RunView(
            paths,
            terminal,
            log_filter=log_filter,
            collapse=collapse,
            native=native,
            shows_messages=False,
            events_offset=end_of_lines(paths.events),
        )
        view.run(is_over=registry.StateFile(paths).is_over)
    else:
        style = line_style_for(terminal, terminal.stdout, collapse, native)
        _print(MergedLogs(paths, log_filter, style), terminal)


def _print(merged: MergedLogs, terminal: Terminal) -> None:
    for block in merged.drain():
        if not terminal.out_lines(block):
            return
    if omitted := merged.omitted():
        text = f"{plural(omitted, 'start line')} of TensorFlow not shown: --all shows all lines"
        terminal.say_wrapped(text, "dim")


def _emit(merged: MergedLogs, terminal: Terminal, *, is_over: Callable[[], bool]) -> None:
    """Write each line as ``{"task": …, "line": …}`` until the run ends or stdout is closed."""
    records = _Records()
    while not is_over():
        before = terminal.stdout.error
        for block in merged.advance():
            _emit_block(records.convert(block), terminal)
        if terminal.stdout.error != before:
            return
        time.sleep(_PAUSE_S)
    for block in merged.drain():
        _emit_block(records.convert(block), terminal)


def _emit_block(records: Iterable[str], terminal: Terminal) -> None:
    terminal.out_lines("".join(records).encode())


class _Records:
    """Turns the blocks of `MergedLogs` into JSON objects, one per line of output.

    A line longer than a block comes in several; only the last of them ends with a newline.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_within_line = False

    def convert(self, block: bytes) -> Iterator[str]:
        text = self._decoder.decode(block, final=block.endswith(b"\n"))
        *whole, rest = text.split("\n")
        for line in whole:
            yield self._begin(line) + '"}\n'
            self._is_within_line = False
        if not block.endswith(b"\n"):
            yield self._begin(rest)
            self._is_within_line = True

    def _begin(self, text: str) -> str:
        if self._is_within_line:
            return _escape(text)
        task, _, line = text.partition(SEPARATOR)
        return f'{{"task": "{_escape(task)}", "line": "{_escape(line)}'


def _escape(text: str) -> str:
    return escape_json(json.dumps(text))[1:-1]


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
