"""`tfcluster debug`: a debugger on this machine, attached to a task of a live run."""

from __future__ import annotations

import time

import click

from tfcluster.cli.completion import live_runs, task_names
from tfcluster.cli.exec import split_words
from tfcluster.cli.scheduler_runs import SchedulerChoice
from tfcluster.errors import UsageError
from tfcluster.ui.terminal import Terminal

_CHECK_S = 1.0


@click.command("debug")
@click.argument("run", required=False, shell_complete=live_runs)
@click.argument("task", required=False, shell_complete=task_names)
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N",
              help="Port on 127.0.0.1 (default: any free one).")  # fmt: skip
def debug(run: str | None, task: str | None, port: int) -> None:
    """Attach debugpy to TASK of RUN (default: the only live one), until Ctrl-C.

    Prints the launch.json for VS Code, whose debugger then reaches the task through a port of this
    machine. The task needs its hooks and, in its Python, debugpy. While it waits at a breakpoint,
    all others wait for it.
    """
    run, task, more = split_words([run, task], example="tfcluster debug RUN worker:0")
    if more:
        raise UsageError(f"{' '.join(more)!r} is no task", fix="name one task")
    terminal = Terminal()
    live = SchedulerChoice().find_run(run, live_only=True)
    terminal.say(f"attaching debugpy to {task} …")
    try:
        with live.debug(task, port=port) as debugger:
            terminal.out(debugger.launch_json)
            where = f"127.0.0.1:{debugger.port}"
            terminal.say_wrapped(f"{task} can be debugged at {where} until Ctrl-C; the run goes on")
            while debugger.is_current():
                time.sleep(_CHECK_S)
    except KeyboardInterrupt:
        return
    terminal.say(f"{task} has ended")
