"""`tfcluster env`: a task's environment as shell exports, to start it by hand."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from tfcluster.cli.completion import files
from tfcluster.errors import UsageError
from tfcluster.plan.plan import EnvVar, Plan, TaskId


@click.command("env")
@click.argument("spec", shell_complete=files)
@click.argument("task_name", metavar="TASK")
@click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Override a field.")
@click.option("--python", metavar="PATH", shell_complete=files, help="Python of the tasks.")
def command(spec: str, task_name: str, sets: tuple[str, ...], python: str | None) -> None:
    """Print what TASK (worker:1) of SPEC gets, for a shell that starts it by hand.

    Example: eval "$(tfcluster env cluster.json worker:1)" && python train.py
    """
    from tfcluster.run.joined import plan_by_hand
    from tfcluster.ui import plan_view
    from tfcluster.ui.terminal import Terminal

    planned, task = plan_by_hand(spec, task_name, sets=sets, python=python)
    plan = planned.plan
    env = tuple(by_hand(plan, task, bundle=planned.around.bundle(plan.task(task).node)))
    Terminal().out("\n".join(plan_view.format_exports(plan, task, env, known=os.environ)))


def by_hand(plan: Plan, task: TaskId, *, bundle: str) -> Iterator[EnvVar]:
    """All variables of `task` as it is started outside of any run, by name.

    Raises UsageError when a port is still to be chosen: nobody would choose it.
    """
    from tfcluster.plan.attempt import environment, fixed
    from tfcluster.plan.command import python_path
    from tfcluster.run.paths import home

    try:
        attempt = fixed(plan)
    except ValueError as error:
        cure = 'write every address with its port, for example "127.0.0.1:2222"'
        raise UsageError(
            f"env needs ports that are fixed in the spec: {error}", cure=cure
        ) from None
    folder = home() / "by-hand" / plan.name / task.file_name
    later = environment(
        attempt,
        task,
        run_id="by-hand",
        checkpoint_dir=str(folder / "checkpoints"),
        tensorboard_dir=str(folder / "tensorboard"),
        tuner_dir=str(folder.parent / "tuner"),
        holds_ports=False,
    )
    found = {var.name: var for var in (*plan.task(task).command.env, *later)}
    if plan.hooks and not plan.task(task).has_own_command:
        own = found.get("PYTHONPATH")
        base = own.value if own else os.environ.get("PYTHONPATH")
        found["PYTHONPATH"] = EnvVar("PYTHONPATH", python_path(base, bundle), "tfcluster")
    yield from (found[name] for name in sorted(found))
