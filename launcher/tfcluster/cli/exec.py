"""`tfcluster exec`: a command or a shell beside a task, in its environment."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

import click

from tfcluster.cli.completion import live_runs, task_names
from tfcluster.cli.scheduler_runs import SchedulerChoice
from tfcluster.errors import UsageError
from tfcluster.ui.raw_terminal import RawTerminal
from tfcluster.ui.terminal import Terminal

TASK = re.compile(r"[a-z_]+:\d+")
_EXAMPLE = "tfcluster exec RUN worker:0 -- nvidia-smi"


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.argument("run", required=False, shell_complete=live_runs)
@click.argument("task", required=False, shell_complete=task_names)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def exec_(run: str | None, task: str | None, command: tuple[str, ...]) -> None:
    """Run COMMAND (default: a shell) beside TASK of RUN (default: the only live one).

    It runs on the task's node, in its container or pod, with its working directory, its variables
    and its Python. On a terminal it gets one; else its stdin, stdout and stderr are those of this
    command. The exit code is its own, 128 + N for signal N. It ends with this command, and with
    the task.
    """
    run, task, argv = split_words([run, task, *command], example=_EXAMPLE)
    live = SchedulerChoice().find_run(run, live_only=True)
    terminal = RawTerminal(0) if os.isatty(0) and os.isatty(1) else None
    end = live.exec(task, *argv, stdin=0, terminal=terminal)
    if end.task_has_ended:
        Terminal().say(f"{task} has ended, and with it the command")
    sys.exit(end.code)


def split_words(given: Sequence[str | None], *, example: str) -> tuple[str | None, str, list[str]]:
    """Return the run, the task and the command of ``[RUN] TASK [--] [COMMAND…]``.

    Raises UsageError, with `example` as its fix.
    """
    words = [word for word in given if word is not None]
    run = words.pop(0) if words and not TASK.fullmatch(words[0]) and words[0] != "--" else None
    if not words or words[0] == "--":
        raise UsageError("no task is named", fix=example)
    task, *argv = words
    return run, task, argv[1:] if argv[:1] == ["--"] else argv
