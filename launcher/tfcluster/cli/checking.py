"""`tfcluster validate`, `plan` and `doctor`: one check of a spec, at three depths.

`validate` checks the spec, the files that it names and the tasks' Python. `plan` shows the tasks,
and what on this machine would stop them. `doctor` asks the nodes, too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from tfcluster.cli.completion import task_names
from tfcluster.cli.options import (
    ENV_OPTIONS,
    HOST_OPTIONS,
    WithJobArgs,
    backend_option,
    plan_options,
)
from tfcluster.discovery import planning
from tfcluster.discovery.planning import Planned
from tfcluster.errors import Problem, SetupError, SpecError, TfclusterError
from tfcluster.plans import placement
from tfcluster.preflight import rules
from tfcluster.spec import PlanOptions
from tfcluster.ui import plan_view
from tfcluster.ui.formats import plural
from tfcluster.ui.terminal import Terminal

_spec = click.argument("spec", required=False)
_plan_options = plan_options(*HOST_OPTIONS, backend_option)


@click.command("validate")
@click.argument("specs", metavar="[SPEC]...", nargs=-1)
@_plan_options
@click.option("--json", "as_json", is_flag=True,
              help="Print one JSON object per SPEC, with all problems.")  # fmt: skip
def validate(specs: tuple[str, ...], changes: PlanOptions, as_json: bool) -> None:
    """Check each SPEC (./tfcluster.json; - = standard input); report every problem with a fix.

    Files, folders and variables that SPEC names must exist. Exit codes, those of `plan`: 0 the spec
    is OK, 2 it is not, 3 the tasks' Python does not work. `tfcluster doctor SPEC` checks that this
    machine and the hosts can run it.
    """
    terminal = Terminal()
    wrong = list[TfclusterError]()
    problems = list[Problem]()
    for spec in specs or (None,):
        try:
            planned = planning.plan(spec, changes)
        except TfclusterError as error:
            found = _problems_of(error, spec or ".")
            if as_json:
                shown = [{"place": p.place, "message": p.message, "cure": p.fix} for p in found]
                terminal.emit_json({"valid": False, "problems": shown})
            wrong.append(error)
            problems += found
            continue
        checked, path = planned.spec, planned.plan.spec_path
        if as_json:
            known = {"spec": path, "name": checked.name, "tasks": checked.task_count}
            terminal.emit_json({"valid": True, **known, "problems": []})
        else:
            name = spec or (os.path.basename(path) if path else "-")
            terminal.say(f"{name}: OK; {checked.name}, {plural(checked.task_count, 'task')}")
    if not wrong:
        return
    together = wrong[0] if len(wrong) == 1 else SpecError(problems)
    together.exit_code = min(error.exit_code for error in wrong)
    if as_json:
        raise click.exceptions.Exit(together.exit_code)
    raise together


def _problems_of(error: TfclusterError, place: str) -> Sequence[Problem]:
    """Return the problems of `error`; an error that is about no line of the spec is at `place`."""
    alone = [Problem(place, error.message, error.fix)]
    return error.problems if isinstance(error, SpecError) else alone


@click.command("plan", cls=WithJobArgs)
@_spec
@click.option("--task", "task_name", metavar="TASK", shell_complete=task_names,
              help="Show one task in full, such as worker:1.")  # fmt: skip
@plan_options(*HOST_OPTIONS, backend_option, *ENV_OPTIONS)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(spec: str | None, changes: PlanOptions, task_name: str | None, as_json: bool) -> None:
    """Show the tasks of SPEC (./tfcluster.json): nodes, addresses, Python, resources.

    ARGS after -- are appended to the job's own. Problems that would stop `up` are listed too;
    the exit code is still 0.
    """
    show_plan(planning.plan(spec, changes), task_name, as_json=as_json)


def show_plan(planned: Planned, task_name: str | None = None, *, as_json: bool) -> None:
    """Print a plan and what would stop its start, or one of its tasks in full."""
    problems = tuple(rules.find_obstacles(planned))
    plan, terminal = planned.plan, Terminal()
    if task_name is not None:
        task = placement.find_task((task.id for task in plan.tasks), task_name)
        if as_json:
            terminal.emit_json(plan_view.task_json(plan, task))
        else:
            terminal.out("\n".join(plan_view.format_task(plan, task)))
    elif as_json:
        terminal.emit_json(plan_view.plan_json(plan, problems))
    else:
        lines = plan_view.format_plan(plan, problems, width=terminal.width)
        terminal.out("\n".join(lines))


@click.command("doctor")
@_spec
@click.option("--deep", is_flag=True, help="Also import TensorFlow and measure all-reduces.")
@_plan_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(spec: str | None, changes: PlanOptions, deep: bool, as_json: bool) -> int:
    """Check every node of SPEC as `up` does before it starts; without SPEC, check this machine.

    Checks versions, GPUs, ports, host names, connections between nodes, disks, clocks and
    proxies; --deep also starts the nodes, compares TensorFlow's devices with nvidia-smi, and
    measures all-reduces of 64 MB over each link and over all workers. Exit codes: 0 all checks
    passed, 3 a problem was found.
    """
    from tfcluster.preflight.doctor import examine, examine_this_machine
    from tfcluster.preflight.known_links import remember
    from tfcluster.ui.preflight_table import format_report

    terminal = Terminal()
    if spec is None and not changes.touches_spec:
        report = examine_this_machine(changes.python, deep=deep)
    else:
        planned = planning.plan(spec, changes)
        report = examine(planned, deep=deep, tell=terminal.say)
        remember(report, planned.plan)
    if as_json:
        terminal.emit_json(report.to_json())
    else:
        colours = terminal.has_colour(terminal.stdout)
        terminal.out(format_report(report, width=terminal.stdout.width(), colours=colours))
    return SetupError.exit_code if report.fatal else 0
