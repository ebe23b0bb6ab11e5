"""`tfcluster join`: start this machine's tasks of a cluster; the other machines start theirs."""

from __future__ import annotations

from dataclasses import replace

import click

from tfcluster.cli.completion import task_names
from tfcluster.cli.options import Display, WithJobArgs, job_args, skip_options, watch_options
from tfcluster.spec import LaunchOptions


@click.command("join", cls=WithJobArgs)
@click.argument("spec", required=False)
@click.option("--task", "names", multiple=True, metavar="TASK", shell_complete=task_names,
              help="Start worker:1, whatever its address; may be repeated.")  # fmt: skip
@click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Override a field.")
@click.option("--python", metavar="PATH", help="Python that runs the tasks.")
@click.option("--name", metavar="NAME", help="Name of the run (name).")
@watch_options
@skip_options("this machine")
def command(
    spec: str | None,
    names: tuple[str, ...],
    sets: tuple[str, ...],
    python: str | None,
    name: str | None,
    options: LaunchOptions,
    display: Display,
) -> int:
    """Start the tasks of SPEC (./tfcluster.json) whose addresses are this machine's.

    Run it on every machine, or have a scheduler (Slurm) or orchestrator (Kubernetes) start it
    there; there is no ssh and no common coordinator. All machines need the same SPEC with a fixed
    port for every task. Tasks are never restarted; to resume, set checkpoints.dir to storage that
    all machines share.

    ARGS after -- are appended to the job's own. Exit codes: those of `up`, and 5 if tasks failed
    here only because of a failure on another machine: start all machines again.
    """
    from tfcluster.api import make_launch
    from tfcluster.cli.launch import launch
    from tfcluster.discovery.planning import plan_join

    planned = plan_join(
        spec,
        names=names,
        sets=sets,
        options={"--name": ("name", name)},
        python=python,
        args=job_args(),
    )
    if names:  # a task may have another machine's address, which the checks would refuse
        options = replace(options, runs_preflight=False)
    return launch(make_launch(planned, options), display)
