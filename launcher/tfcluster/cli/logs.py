"""`tfcluster logs`: the tasks' output, of a run that is over or, with -f, of one that goes on."""

from __future__ import annotations

import codecs
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator

import click

from tfcluster.cli.completion import files
from tfcluster.errors import UsageError
from tfcluster.plan.plan import TaskId
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths
from tfcluster.ui.follow import RunView, StateFile, dress_for
from tfcluster.ui.lines import escaped_json
from tfcluster.ui.merged_logs import LogFilter, MergedLogs, newest_attempts, rank
from tfcluster.ui.tail import end_of_lines
from tfcluster.ui.terminal import Terminal

SEPARATOR = " │ "
_PAUSE_S = 0.1


@click.command("logs")
@click.argument("run", required=False, shell_complete=files)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is over.")
@click.option("--task", "tasks", multiple=True, metavar="TASK",
              help="Only this task (worker:1, prepare); may be given again.")  # fmt: skip
@click.option("--grep", metavar="REGEX", help="Only lines in which REGEX is found.")
@click.option("--attempt", type=click.IntRange(min=1), help="That attempt (default: the latest).")
@click.option("--tail", type=click.IntRange(min=0), metavar="N",
              help="Begin with the last N lines of each task.")  # fmt: skip
@click.option("--collapse", is_flag=True, help="Show lines that several tasks write alike once.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line: task, line.")
def command(
    run: str | None,
    follow: bool,
    tasks: tuple[str, ...],
    grep: str | None,
    attempt: int | None,
    tail: int | None,
    collapse: bool,
    as_json: bool,
) -> None:
    """Show or follow the output of RUN's tasks (default: of the latest run)."""
    terminal, paths = Terminal(), registry.resolve(run)
    wanted = LogFilter(
        tasks=_labels(paths, tasks),
        grep=_pattern(grep),
        first_attempt=attempt or 0,
        first_of={} if attempt else _newest(paths, tasks, terminal),
        last_attempt=attempt,
        tail=tail,
    )
    if as_json:
        if collapse:
            raise UsageError("--collapse merges lines, --json tells each", fix="leave one out")
        is_over = StateFile(paths).is_over
        _emit(MergedLogs(paths, wanted), terminal, is_over=lambda: not follow or is_over())
    elif follow:
        view = RunView(
            paths,
            terminal,
            wanted=wanted,
            collapse=collapse,
            talks=False,
            events_offset=end_of_lines(paths.events),
        )
        view.run(is_over=StateFile(paths).is_over)
    else:
        merged = MergedLogs(paths, wanted, dress_for(terminal, terminal.stdout, collapse))
        for block in merged.drain():
            if not terminal.out_lines(block):
                break


def _emit(merged: MergedLogs, terminal: Terminal, *, is_over: Callable[[], bool]) -> None:
    """Each line as ``{"task": …, "line": …}``; returns when the run is over or nobody reads."""
    records = _Records()
    while not is_over():
        before = terminal.stdout.error
        for block in merged.advance():
            _emit_block(records.of(block), terminal)
        if terminal.stdout.error != before:
            return
        time.sleep(_PAUSE_S)
    for block in merged.drain():
        _emit_block(records.of(block), terminal)


def _emit_block(records: Iterable[str], terminal: Terminal) -> None:
    terminal.out_lines("".join(records).encode())


class _Records:
    """JSON objects of the blocks of `MergedLogs`, where a line longer than a block comes in
    several: only the last of those ends with a newline."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_within_line = False

    def of(self, block: bytes) -> Iterator[str]:
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
            return _quoted(text)
        task, _, line = text.partition(SEPARATOR)
        return f'{{"task": "{_quoted(task)}", "line": "{_quoted(line)}'


def _quoted(text: str) -> str:
    return escaped_json(json.dumps(text))[1:-1]


def _labels(paths: RunPaths, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """As the logs name them; raises UsageError for a task that the run does not have."""
    if not wanted:
        return ()
    has = [task.task for task in registry.load(paths).tasks]
    labels = tuple(map(_label, wanted))
    for label in labels:
        if label not in has and not label.startswith("prepare"):
            raise UsageError(
                f"--task: {paths.run_id} has no {label}", fix=f"it has {', '.join(has)}"
            )
    return labels


def _label(task: str) -> str:
    """As the logs name it; raises UsageError."""
    if task.partition("@")[0] == "prepare":
        return task
    try:
        return str(TaskId.parse(task))
    except ValueError as error:
        raise UsageError(f"--task: {error}") from error


def _pattern(regex: str | None) -> re.Pattern[bytes] | None:
    try:
        return re.compile(regex.encode(), re.MULTILINE) if regex is not None else None
    except re.error as error:
        raise UsageError(
            f"--grep: {regex!r} is not a regular expression: {error}",
            fix="write a backslash before signs that are meant as they are",
        ) from error


def _newest(paths: RunPaths, tasks: tuple[str, ...], terminal: Terminal) -> dict[str, int]:
    """Each task's newest attempt, said where there are several; prepare belongs to the first."""
    newest = newest_attempts(paths.logs)
    shown = {label: at for label, at in newest.items() if at and (not tasks or label in tasks)}
    if max(shown.values(), default=1) > 1:
        which = "; ".join(_which(shown, number) for number in sorted(set(shown.values())))
        terminal.tell(f"{paths.run_id}: {which}. --attempt N shows another")
        newest |= {label: 1 for label in newest if label.startswith("prepare") and not tasks}
    return newest


def _which(shown: dict[str, int], number: int) -> str:
    labels = sorted((label for label, at in shown.items() if at == number), key=rank)
    names = "" if len(labels) == len(shown) else f" of {', '.join(labels)}"
    return f"attempt {number}{names}"
