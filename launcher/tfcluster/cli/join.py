"""`tfcluster join`: start this machine's tasks of a cluster, whose others start elsewhere."""

from __future__ import annotations

from typing import Any

import click

from tfcluster.cli.completion import files
from tfcluster.cli.options import WithJobArgs, job_args, watch_options


@click.command("join", cls=WithJobArgs)
@click.argument("spec", required=False, shell_complete=files)
@click.option("--task", "names", multiple=True, metavar="TASK",
              help="Start worker:1, whatever its address; may be given again.")  # fmt: skip
@click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Override a field.")
@click.option("--python", metavar="PATH", shell_complete=files, help="Python of the tasks.")
@click.option("--name", metavar="NAME", help="Name of the run (name).")
@watch_options
@click.option("--no-preflight", is_flag=True, help="Do not look at this machine first.")
@click.option("--no-prepare", is_flag=True, help="Leave out job.prepare.")
def command(
    spec: str | None,
    names: tuple[str, ...],
    sets: tuple[str, ...],
    python: str | None,
    name: str | None,
    no_preflight: bool,
    no_prepare: bool,
    watch: dict[str, Any],
) -> int:
    """Start the tasks of SPEC (./tfcluster.json) whose addresses are this machine's.

    To be typed on every machine, or started there by an engine: no ssh, and nobody above them.
    All need the same SPEC, with the port of every task written in it. Nothing is ever started
    again; to resume, set checkpoints.dir to storage that all machines share.

    ARGS after -- are appended to the job's own. Exit codes: those of `up`, and 5 where all that
    failed here only followed a failure on another machine: start all of them again.
    """
    from tfcluster.cli.launch import Options, launch
    from tfcluster.discovery.planning import plan_join

    planned = plan_join(
        spec,
        names=names,
        sets=sets,
        options={"--name": ("name", name)} if name is not None else None,
        python=python,
        args=job_args(),
    )
    how = Options(
        **watch,
        prepares=not no_prepare,
        runs_preflight=not (no_preflight or names),  # a task named may have an address of another
    )
    return launch(planned, how)
