"""`tfcluster run`: run a script as N workers, on this machine or on hosts, without a spec."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from tfcluster.cli.completion import files
from tfcluster.cli.options import host_options, watch_options
from tfcluster.errors import UsageError
from tfcluster.spec import HostChoice


@click.command(
    "run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option("-n", "workers", type=click.IntRange(1), metavar="N",
              help="Number of workers (default: 2; with --hosts: their slots).")  # fmt: skip
@click.option("-m", "module", metavar="MODULE", help="Run a module instead of SCRIPT.")
@click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Set a field of the spec.")
@host_options
@click.option("--python", metavar="PATH", shell_complete=files, help="Python that runs the tasks.")
@click.option("--name", metavar="NAME", help="Name of the run (default: the script's).")
@click.option("--chaos", multiple=True, metavar="FAULT",
              help="Inject a fault: 'kill worker:1 at step 50';"
                   " see `tfcluster help chaos`.")  # fmt: skip
@watch_options
@click.argument("line", nargs=-1, metavar="SCRIPT [ARGS]...", type=click.UNPROCESSED,
                shell_complete=files)  # fmt: skip
def command(
    workers: int | None,
    module: str | None,
    sets: tuple[str, ...],
    hosts: HostChoice,
    python: str | None,
    name: str | None,
    chaos: tuple[str, ...],
    line: tuple[str, ...],
    options: dict[str, Any],
    shown: dict[str, bool],
) -> int:
    """Run SCRIPT as the workers of one cluster; ARGS are passed to the script.

    The workers run on this machine or, with --hosts, on other machines through ssh.
    """
    from tfcluster.api import make_launch, spec_of_program
    from tfcluster.cli.launch import launch, preimport
    from tfcluster.discovery.planning import plan_spec
    from tfcluster.spec.load import from_value

    program, *args = (module, *line) if module is not None else line or ("",)
    if not program:
        raise UsageError("no script to run", fix="tfcluster run [-n 2] SCRIPT [ARGS…]")
    is_module = module is not None
    spec = spec_of_program(program, args, workers=workers or 2, is_module=is_module, name=name)
    choice = replace(hosts, workers=workers)
    loaded = from_value(spec, where="tfcluster run", sets=sets, hosts=choice)
    planned = plan_spec(loaded, python=python, meanwhile=preimport)
    return launch(make_launch(planned, **options, chaos=chaos), **shown)
