"""`tfcluster run`: run a script as N workers, on this machine or on hosts, without a spec."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from tfcluster.cli.options import Display, chaos_option, host_options, watch_options
from tfcluster.errors import UsageError
from tfcluster.spec import SPEC_NAMES, HostChoice, LaunchOptions

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class _Run(click.Command):
    """The command `run`: what follows SCRIPT belongs to the script, also in completion."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return [] if ctx.params.get("line") else super().shell_complete(ctx, incomplete)


@click.command(
    "run",
    cls=_Run,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("-n", "workers", type=click.IntRange(1), metavar="N",
              help="Number of workers (default: 2; with --hosts: their slots).")  # fmt: skip
@click.option("-m", "module", metavar="MODULE", help="Run a module instead of SCRIPT.")
@click.option("--no-python", is_flag=True, help="Run the command SCRIPT without Python.")
@click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Set a field of the spec.")
@host_options
@click.option("--python", metavar="PATH", help="Python that runs the tasks.")
@click.option("--name", metavar="NAME", help="Name of the run (default: the script's).")
@watch_options
@chaos_option
@click.argument("line", nargs=-1, metavar="SCRIPT [ARGS]...", type=click.UNPROCESSED)
def command(
    workers: int | None,
    module: str | None,
    no_python: bool,
    sets: tuple[str, ...],
    hosts: HostChoice,
    python: str | None,
    name: str | None,
    line: tuple[str, ...],
    options: LaunchOptions,
    display: Display,
) -> int:
    """Run SCRIPT as the workers of one cluster; ARGS are passed to the script.

    The workers run on this machine or, with --hosts, on other machines through ssh. With
    --no-python, SCRIPT is any command: a program on PATH, or a file such as ./bench.sh.
    """
    from tfcluster.api import make_launch, spec_of_program
    from tfcluster.cli.launch import launch, preimport
    from tfcluster.discovery.planning import plan_spec
    from tfcluster.spec.load import from_value

    program, *args = (module, *line) if module is not None else line or ("",)
    kind: Literal["script", "module", "command"] = "script"
    if module is not None:
        kind = "module"
        if no_python:
            raise UsageError("-m and --no-python exclude each other", fix="leave one of them out")
    elif no_python:
        kind = "command"
    _check_program(program, args, kind)
    if kind == "command" and hosts.hosts is None and hosts.hostfile is None:
        _check_command(program)
    spec = spec_of_program(program, args, workers=workers or 2, kind=kind, name=name)
    choice = replace(hosts, workers=workers)
    loaded = from_value(spec, where="tfcluster run", sets=sets, hosts=choice)
    planned = plan_spec(loaded, python=python, meanwhile=preimport)
    return launch(make_launch(planned, options), display)


def _check_program(program: str, args: Sequence[str], kind: str) -> None:
    """Raise UsageError, with the right command, for what is not the program that `kind` says."""
    if not program:
        raise UsageError("no script to run", fix="tfcluster run [-n 2] SCRIPT [ARGS…]")
    if program.startswith("-") and not os.path.isfile(program):
        context = click.get_current_context()
        known = [name for option in context.command.params for name in option.opts]
        near = ["-n"] if re.search("worker|proc", program) else _near(program, known)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise click.UsageError(f"No such option {program!r}.{hint}", context)
    if kind != "script":
        return
    path = Path(os.path.expanduser(program))
    if path.suffix in {Path(name).suffix for name in SPEC_NAMES}:
        fix = shlex.join(["tfcluster", "up", program, *(["--", *args] if args else ())])
        raise UsageError(f"{program} is a spec, and `run` takes a script", fix=fix)
    if re.fullmatch(r"python[\d.]*", path.name) and not path.is_file():
        message = f"leave out {program}: the tasks' Python runs the script"
        raise UsageError(message, fix=shlex.join(["tfcluster", "run", *(args or ["SCRIPT"])]))
    if _is_other_program(path):
        words = [program if "/" in program else f"./{program}", *args]
        fix = shlex.join(["tfcluster", "run", "--no-python", *words])
        raise UsageError(f"{program} is not a Python script", fix=fix)


def _check_command(program: str) -> None:
    """Raise UsageError for a command that this machine does not have."""
    if shutil.which(program):
        return
    if "/" not in program and os.path.isfile(program):
        fix = f"if you mean the file in this folder: ./{program}"
        raise UsageError(f"there is no command {program} on PATH", fix=fix)
    if os.path.isfile(program):
        fix = f"chmod +x {shlex.quote(program)}"
        raise UsageError(f"{program} is not executable", fix=fix)
    raise UsageError(f"there is no command {program}", fix="check the name, or give its path")


def _near(name: str, known: Sequence[str]) -> list[str]:
    return difflib.get_close_matches(name, known, n=1)


def _is_other_program(path: Path) -> bool:
    """Return whether a file is a shell script or a binary."""
    try:
        with path.open("rb") as file:
            start = file.readline(200)
    except OSError:
        return False
    is_foreign = start.startswith(b"#!") and b"python" not in start
    return is_foreign or path.suffix == ".sh" or start.startswith(b"\x7fELF")
