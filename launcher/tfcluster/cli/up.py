"""`tfcluster up`: start the cluster of a spec and stay with it to its end."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from tfcluster.cli.completion import files
from tfcluster.cli.options import WithJobArgs, host_options, job_args, watch_options
from tfcluster.spec.host_choice import HostChoice


@click.command("up", cls=WithJobArgs)
@click.argument("spec", required=False, shell_complete=files)
@click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Override a field.")
@host_options
@click.option("--backend", metavar="NAME", help="Where tasks run (runtime.backend).")
@click.option("--python", metavar="PATH", shell_complete=files, help="Python of the tasks.")
@click.option("--name", metavar="NAME", help="Name of the run (name).")
@click.option("--resume", metavar="RUN[@STEP]",
              help="Begin with what RUN gathered; without SPEC: by RUN's own.")  # fmt: skip
@click.option("--except", "excepted", multiple=True, metavar="TASK",
              help="Leave worker:1 to be started by hand; may be given again.")  # fmt: skip
@click.option("--chaos", multiple=True, metavar="FAULT",
              help="Inject 'kill worker:1 at step 50'; see `tfcluster help chaos`.")  # fmt: skip
@watch_options
@click.option("--no-preflight", is_flag=True, help="Do not look at the nodes first.")
@click.option("--no-prepare", is_flag=True, help="Leave out job.prepare.")
def command(
    spec: str | None,
    sets: tuple[str, ...],
    at: HostChoice,
    backend: str | None,
    python: str | None,
    name: str | None,
    resume: str | None,
    excepted: tuple[str, ...],
    chaos: tuple[str, ...],
    no_preflight: bool,
    no_prepare: bool,
    watch: dict[str, Any],
) -> int:
    """Start the tasks of SPEC (./tfcluster.json, - for stdin), show their lines, end with them.

    With -d the run goes on in the background: `attach`, `logs -f`, `status`, `wait`, `down`.

    With --except the start panel shows the line that starts that task, say under a debugger.

    ARGS after -- are appended to the job's own. Exit codes: 0 succeeded, 1 the job failed,
    2 command line or spec, 3 surroundings, 4 a deadline, 130 Ctrl-C, 143 `tfcluster down`.
    """
    from tfcluster.cli.launch import Options, get_ready, launch
    from tfcluster.coordinator.resume import find
    from tfcluster.discovery.planning import plan_again, plan_file

    begins_with = find(resume) if resume is not None else None
    stored = begins_with.source if begins_with is not None and spec is None else None
    plan = partial(plan_file, spec) if stored is None else partial(plan_again, stored)
    options = _given({"--name": ("name", name), "--backend": ("runtime.backend", backend)})
    looks = {"prepares": not no_prepare, "runs_preflight": not no_preflight}
    how = Options(**watch, **looks, resume=begins_with, chaos=chaos)
    planned = plan(
        sets=sets, options=options, python=python, args=job_args(), hosts=at, meanwhile=get_ready
    )
    return launch(planned.without_tasks(excepted), how)


def _given(options: dict[str, tuple[str, str | None]]) -> dict[str, tuple[str, str]]:
    """Option → field and value, of those that were given."""
    return {name: (field, value) for name, (field, value) in options.items() if value is not None}
