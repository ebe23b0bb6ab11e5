"""`tfcluster plan`: show what would be started, without starting it."""

from __future__ import annotations

import click

from tfcluster.cli.completion import task_names
from tfcluster.cli.options import WithJobArgs, backend_option, host_options, job_args
from tfcluster.spec import HostChoice


@click.command("plan", cls=WithJobArgs)
@click.argument("spec", required=False)
@click.option(
    "--task",
    "task_name",
    metavar="TASK",
    shell_complete=task_names,
    help="Show one task in full, such as worker:1.",
)
@click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Override a field.")
@host_options
@backend_option
@click.option("--python", metavar="PATH", help="Python that runs the tasks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    spec: str | None,
    task_name: str | None,
    sets: tuple[str, ...],
    hosts: HostChoice,
    backend: str | None,
    python: str | None,
    as_json: bool,
) -> None:
    """Show the tasks of SPEC (./tfcluster.json): nodes, addresses, Python, resources.

    ARGS after -- are appended to the job's own. Problems that would stop `up` are listed too;
    the exit code is still 0.
    """
    from tfcluster.discovery.planning import plan_file
    from tfcluster.plans import placement
    from tfcluster.ui import plan_view
    from tfcluster.ui.terminal import Terminal

    planned = plan_file(
        spec,
        sets=sets,
        options={"--backend": ("runtime.backend", backend)},
        python=python,
        args=job_args(),
        hosts=hosts,
    )
    plan, terminal = planned.plan, Terminal()
    if task_name is not None:
        task = placement.find_task((task.id for task in plan.tasks), task_name)
        if as_json:
            terminal.emit_json(plan_view.task_json(plan, task))
        else:
            terminal.out("\n".join(plan_view.format_task(plan, task)))
    elif as_json:
        terminal.emit_json(plan_view.plan_json(plan, planned.obstacles()))
    else:
        lines = plan_view.format_plan(plan, planned.obstacles(), width=terminal.width)
        terminal.out("\n".join(lines))
