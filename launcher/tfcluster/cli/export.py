"""`tfcluster export`: write a cluster as a file of another tool, which then starts the tasks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from tfcluster.cli.options import WithJobArgs, job_args
from tfcluster.export import FORMATS


@click.command("export", cls=WithJobArgs)
@click.argument("spec", required=False)
@click.option("--format", "name", type=click.Choice(list(FORMATS)), required=True,
              help="The tool that reads the file.")  # fmt: skip
@click.option("-o", "--output", "target", metavar="FILE", default="-",
              help="The file to write (default: -, stdout).")  # fmt: skip
@click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Override a field.")
@click.option("--python", metavar="PATH", help="Python that runs the tasks.")
def command(
    spec: str | None,
    name: str,
    target: str,
    sets: tuple[str, ...],
    python: str | None,
) -> None:
    """Write the tasks of SPEC (./tfcluster.json) as a file of another tool, and start nothing.

    compose: a Compose file with a service for each task, which starts without tfcluster. sbatch:
    the script of a Slurm job, in which tfcluster starts the tasks. kubernetes: the objects that
    `up` creates. The file says what it needs. Secrets are never written.

    ARGS after -- are appended to the job's own.
    """
    from tfcluster.cli.report import write_page
    from tfcluster.export.request import Request, export
    from tfcluster.ui.terminal import Terminal

    file = None if target == "-" else Path(target).absolute()
    request = Request(
        spec=spec,
        sets=sets,
        python=python,
        args=job_args(),
        file=file.name if file is not None else "",
        folder=str(file.parent if file is not None else Path.cwd()),
        tfcluster=_own_command(),
        user=f"{os.getuid()}:{os.getgid()}",
        environ=os.environ,
    )
    exported = export(name, request)
    write_page(exported.text, target, example="FILE")
    for need in exported.needs:
        Terminal().say(f"the file needs {need}")


def _own_command() -> tuple[str, ...]:
    """Return the command that starts this tfcluster in any folder."""
    script = Path(sys.executable).with_name("tfcluster")
    return (str(script),) if script.exists() else (sys.executable, "-P", "-m", "tfcluster")
