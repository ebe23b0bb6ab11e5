"""`tfcluster doctor`: what would stop a start, on every node, without starting anything."""

from __future__ import annotations

import click

from tfcluster.cli.completion import files
from tfcluster.cli.options import host_options
from tfcluster.spec.host_choice import HostChoice


@click.command("doctor")
@click.argument("spec", required=False, shell_complete=files)
@click.option("--deep", is_flag=True, help="Import TensorFlow on every node: seconds, devices.")
@click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Override a field.")
@host_options
@click.option("--python", metavar="PATH", shell_complete=files, help="Python of the tasks.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(
    spec: str | None,
    deep: bool,
    sets: tuple[str, ...],
    at: HostChoice,
    python: str | None,
    as_json: bool,
) -> int:
    """Look at every node of SPEC as `up` does before it starts; without SPEC at this machine.

    Versions, GPUs, ports, names, who can connect to whom, disks, clocks, proxies. Exit codes:
    0 nothing stands in the way, 3 something does.
    """
    from tfcluster.discovery.planning import plan_file
    from tfcluster.errors import SurroundingsError
    from tfcluster.preflight import doctor
    from tfcluster.spec.host_choice import NO_CHOICE
    from tfcluster.ui.preflight_table import table
    from tfcluster.ui.terminal import Terminal

    terminal = Terminal()
    if spec is None and not sets and at == NO_CHOICE:
        look = doctor.examine_this_machine(python, deep=deep)
    else:
        look = doctor.examine(plan_file(spec, sets=sets, python=python, hosts=at), deep=deep)
    if as_json:
        terminal.emit_json(look.to_json())
    else:
        colours = terminal.has_colour(terminal.stdout)
        terminal.out(table(look, width=terminal.stdout.width(), colours=colours))
    return SurroundingsError.exit_code if look.fatal else 0
