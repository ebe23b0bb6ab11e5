"""`tfcluster profile`: the same steps of all tasks, traced with TensorFlow's profiler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from tfcluster.cli.completion import run_names, task_names
from tfcluster.cli.scheduler_runs import SchedulerChoice
from tfcluster.coordinator.curves.tensorboard_server import choose_python, explain_profiles
from tfcluster.errors import InterpreterError, UsageError
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths
from tfcluster.ui.history import format_traced
from tfcluster.ui.profile_tables import profile_parts
from tfcluster.ui.render import stdout_text
from tfcluster.ui.terminal import Terminal


@click.command("profile")
@click.argument("run", required=False, shell_complete=run_names)
@click.option("--steps", type=click.IntRange(min=1), default=10, show_default=True, metavar="N",
              help="The number of steps.")  # fmt: skip
@click.option("--task", "tasks", multiple=True, metavar="TASK", shell_complete=task_names,
              help="Only this task (worker:1); may be repeated.")  # fmt: skip
@click.option("--last", is_flag=True, help="Show the newest profile again, also of an ended run.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def profile(run: str | None, steps: int, tasks: tuple[str, ...], last: bool, as_json: bool) -> None:
    """Trace the same steps of all tasks of RUN (default: the only live one), and sum them up.

    Uses TensorFlow's profiler; the training goes on. The tables show what share of the time a task
    computes, waits in collectives, waits for input, and does nothing of that, and the longest ops.
    The traces stay in the run folder: `tfcluster tensorboard` opens them.
    """
    terminal = Terminal()
    if last:
        chosen = SchedulerChoice().find_run(run)
        if (found := chosen.newest_profile()) is None:
            raise UsageError(f"{chosen.id} has no profile", fix="`tfcluster profile` makes one")
    else:
        chosen = SchedulerChoice().find_run(run, live_only=True)

        def say(started: Mapping[str, Any]) -> None:
            terminal.say_wrapped(f"profiling {format_traced(started)} …")

        found = chosen.profile(*tasks, steps=steps, begins=say)
    if as_json:
        terminal.emit_json({"run": chosen.id, **found})
        return
    parts = [stdout_text(part, terminal) for part in profile_parts(found)]
    terminal.out("\n\n".join(parts))
    if any("trace" in task for task in found["tasks"]):
        terminal.say_wrapped(_how_to_open(chosen.paths))


def _how_to_open(paths: RunPaths) -> str:
    """Return the sentence about TensorBoard, with what is missing for it."""
    command = f"`tfcluster tensorboard {paths.run_id[-4:]}` shows the traces"
    try:
        advice = explain_profiles(choose_python([registry.load_plan(paths)]))
    except InterpreterError as error:
        advice = f"first install it: {error.fix} xprof"
    return f"{command}; {advice}" if advice else command
