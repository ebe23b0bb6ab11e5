"""`tfcluster up`: start the cluster of a spec and follow it to its end."""

from __future__ import annotations

import os

import click

from tfcluster.cli.completion import run_names, task_names
from tfcluster.cli.options import (
    Display,
    WithJobArgs,
    backend_option,
    chaos_option,
    host_options,
    job_args,
    skip_options,
    watch_options,
)
from tfcluster.spec import HostChoice, LaunchOptions


@click.command("up", cls=WithJobArgs)
@click.argument("spec", required=False)
@click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Override a field.")
@host_options
@backend_option
@click.option("--submit", "submits", is_flag=True,
              help="Submit a job of its own, also inside an allocation.")  # fmt: skip
@click.option("--python", metavar="PATH", help="Python that runs the tasks.")
@click.option("--name", metavar="NAME", help="Name of the run (name).")
@click.option("--resume", metavar="RUN[@STEP]", shell_complete=run_names,
              help="Resume from the checkpoints of RUN; without SPEC, use RUN's spec.")  # fmt: skip
@click.option("--except", "excepted", multiple=True, metavar="TASK", shell_complete=task_names,
              help="Leave TASK (worker:1) for you to start by hand; may be repeated.")  # fmt: skip
@watch_options
@chaos_option
@skip_options("the nodes")
def command(
    spec: str | None,
    sets: tuple[str, ...],
    hosts: HostChoice,
    backend: str | None,
    submits: bool,
    python: str | None,
    name: str | None,
    resume: str | None,
    excepted: tuple[str, ...],
    options: LaunchOptions,
    display: Display,
) -> int:
    """Start the tasks of SPEC (./tfcluster.json; - = standard input) and show their output.

    With -d the run continues in the background: see `attach`, `logs -f`, `status`, `wait`, `down`.
    With --except the start panel shows the command to start TASK, for example under a debugger.

    ARGS after -- are appended to the job's own. Exit codes: 0 succeeded, 1 the job failed, 2 error
    in the command line or the spec, 3 environment or setup error, 4 deadline passed, 130 Ctrl-C,
    143 `tfcluster down`.
    """
    from tfcluster.api import make_launch, require_scheduler
    from tfcluster.cli.launch import launch, preimport
    from tfcluster.discovery.planning import plan_file
    from tfcluster.kinds import leave_allocation

    if submits:
        backend = leave_allocation(os.environ) or backend
    resumed = None
    if resume is not None:
        from tfcluster.coordinator.resume import find
        from tfcluster.ui.terminal import Terminal

        resumed = find(resume, Terminal().say_wrapped)
    stored = resumed.source if resumed is not None and spec is None else None
    planned = plan_file(
        stored or spec,
        sets=sets,
        options={"--name": ("name", name), "--backend": ("runtime.backend", backend)},
        python=python,
        args=job_args(),
        hosts=hosts,
        meanwhile=preimport,
    )
    planned = planned.without_tasks(excepted)
    if submits:
        require_scheduler(planned.plan)
    return launch(make_launch(planned, options, resume=resumed), display)
