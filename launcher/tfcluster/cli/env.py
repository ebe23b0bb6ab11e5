"""`tfcluster env`: print a task's environment as shell exports, to start it by hand."""

from __future__ import annotations

import os

import click

from tfcluster.cli.completion import task_names


@click.command("env")
@click.argument("spec", metavar="SPEC|RUN")
@click.argument("task_name", metavar="TASK", shell_complete=task_names)
@click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Override a field.")
@click.option("--python", metavar="PATH", help="Python that runs the tasks.")
def command(spec: str, task_name: str, sets: tuple[str, ...], python: str | None) -> None:
    """Print the environment of TASK (worker:1) of SPEC, for a shell that starts it by hand.

    With a RUN of `up --except TASK` instead of SPEC, the ports are those of that run. The last
    line, a comment, holds the command that starts the task.

    Example: eval "$(tfcluster env cluster.json worker:1)" && python train.py
    """
    from tfcluster.coordinator import manual_start
    from tfcluster.ui import plan_view
    from tfcluster.ui.terminal import Terminal

    found = manual_start.build(spec, task_name, sets=sets, python=python)
    lines = plan_view.format_exports(found.plan, found.task, found.env, known=os.environ)
    Terminal().out("\n".join(lines))
