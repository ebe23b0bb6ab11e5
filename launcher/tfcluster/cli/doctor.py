"""`tfcluster doctor`: check every node for what would stop a start, without starting anything."""

from __future__ import annotations

import click

from tfcluster.cli.options import backend_option, host_options
from tfcluster.spec import HostChoice


@click.command("doctor")
@click.argument("spec", required=False)
@click.option("--deep", is_flag=True, help="Also import TensorFlow and measure all-reduces.")
@click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Override a field.")
@host_options
@backend_option
@click.option("--python", metavar="PATH", help="Python that runs the tasks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    spec: str | None,
    deep: bool,
    sets: tuple[str, ...],
    hosts: HostChoice,
    backend: str | None,
    python: str | None,
    as_json: bool,
) -> int:
    """Check every node of SPEC as `up` does before it starts; without SPEC, check this machine.

    Checks versions, GPUs, ports, host names, connections between nodes, disks, clocks and
    proxies; --deep also starts the nodes, compares TensorFlow's devices with nvidia-smi, and
    measures all-reduces of 64 MB over each link and over all workers. Exit codes: 0 all checks
    passed, 3 a problem was found.
    """
    from tfcluster.discovery.planning import plan_file
    from tfcluster.errors import SetupError
    from tfcluster.preflight import doctor
    from tfcluster.spec import NO_CHOICE
    from tfcluster.ui.preflight_table import format_report
    from tfcluster.ui.terminal import Terminal

    terminal = Terminal()
    if spec is None and not sets and hosts == NO_CHOICE and backend is None:
        report = doctor.examine_this_machine(python, deep=deep)
    else:
        options = {"--backend": ("runtime.backend", backend)}
        planned = plan_file(spec, sets=sets, options=options, python=python, hosts=hosts)
        report = doctor.examine(planned, deep=deep, tell=terminal.say)
    if as_json:
        terminal.emit_json(report.to_json())
    else:
        colours = terminal.has_colour(terminal.stdout)
        terminal.out(format_report(report, width=terminal.stdout.width(), colours=colours))
    return SetupError.exit_code if report.fatal else 0
