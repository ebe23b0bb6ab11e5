"""`tfcluster run`: run a script as N workers, on this machine or on hosts, without a spec."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
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
    watch: dict[str, Any],
) -> int:
    """Run SCRIPT as the workers of one cluster; ARGS are passed to the script.

    The workers run on this machine or, with --hosts, on other machines through ssh.
    """
    from tfcluster.cli.launch import Options, launch, preimport
    from tfcluster.discovery.planning import plan_spec
    from tfcluster.spec.load import from_value

    loaded = from_value(
        spec_of(line, module=module, workers=workers or 2, name=name),
        where="tfcluster run",
        sets=sets,
        hosts=replace(hosts, workers=workers),
    )
    planned = plan_spec(loaded, python=python, meanwhile=preimport)
    return launch(planned, Options(**watch, chaos=chaos))


def spec_of(
    line: tuple[str, ...], *, module: str | None, workers: int, name: str | None
) -> dict[str, Any]:
    """Return the spec that a `run` command line stands for; raise UsageError without a script."""
    if module is None and not line:
        raise UsageError("no script to run", fix="tfcluster run [-n 2] SCRIPT [ARGS…]")
    if module is not None:
        program, program_name, args = {"module": module}, module, line
    else:
        program, program_name, args = {"script": line[0]}, Path(line[0]).stem, line[1:]
    default_name = re.sub(r"[^A-Za-z0-9._-]+", "-", program_name).strip("-._") or "run"
    job = {**program, "args": list(args), "workdir": "."}
    return {
        "name": name or default_name,
        "cluster": {"worker": workers},
        "job": job,
        "supervision": {"max_restarts": 0},
    }
