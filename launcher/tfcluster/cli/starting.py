"""`tfcluster up`, `run` and `join`: start a run, and show it to its end."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import click
from click.shell_completion import CompletionItem

from tfcluster.api import make_launch, require_scheduler, spec_of_program
from tfcluster.cli.completion import run_names, task_names
from tfcluster.cli.launch import launch, preimport
from tfcluster.cli.options import (
    HOST_OPTIONS,
    Display,
    WithJobArgs,
    backend_option,
    chaos_option,
    launch_options,
    plan_options,
    skip_options,
)
from tfcluster.coordinator import resume as resuming
from tfcluster.discovery import planning
from tfcluster.discovery.planning import plan_own_part
from tfcluster.errors import UsageError
from tfcluster.kinds import leave_allocation
from tfcluster.spec import SPEC_NAMES, LaunchOptions, PlanOptions
from tfcluster.spec.load import load
from tfcluster.ui.terminal import Terminal

_name = click.option("--name", metavar="NAME",
                     help="Name of the run (default: that of the spec or script).")  # fmt: skip


@click.command("up", cls=WithJobArgs)
@click.argument("spec", required=False)
@plan_options(*HOST_OPTIONS, backend_option, _name)
@click.option("--submit", "submits", is_flag=True,
              help="Submit a job of its own, also inside an allocation.")  # fmt: skip
@click.option("--resume", metavar="RUN[@STEP]", shell_complete=run_names,
              help="Resume from the checkpoints of RUN; without SPEC, use RUN's spec.")  # fmt: skip
@click.option("--except", "excepted", multiple=True, metavar="TASK", shell_complete=task_names,
              help="Leave TASK (worker:1) for you to start by hand; may be repeated.")  # fmt: skip
@launch_options(chaos_option, *skip_options("the nodes"))
def up(
    spec: str | None,
    changes: PlanOptions,
    submits: bool,
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
    if submits and (scheduler := leave_allocation(os.environ)):
        backend = {"--backend": ("runtime.backend", scheduler)}
        changes = replace(changes, fields={**changes.fields, **backend})
    resumed = resuming.find(resume, Terminal().say_wrapped) if resume is not None else None
    stored = resumed.source if resumed is not None and spec is None else None
    planned = planning.plan(stored or spec, changes, meanwhile=preimport)
    planned = planned.without_tasks(excepted)
    if submits:
        require_scheduler(planned.plan)
    return launch(make_launch(planned, options, resume=resumed), display)


@click.command("join", cls=WithJobArgs)
@click.argument("spec", required=False)
@click.option("--task", "names", multiple=True, metavar="TASK", shell_complete=task_names,
              help="Start worker:1, whatever its address; may be repeated.")  # fmt: skip
@plan_options(_name)
@launch_options(*skip_options("this machine"))
def join(
    spec: str | None,
    names: tuple[str, ...],
    changes: PlanOptions,
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
    planned, tasks = plan_own_part(spec, names, changes)
    if names:  # a task may have another machine's address, which the checks would refuse
        options = replace(options, runs_preflight=False)
    return launch(make_launch(planned.only(tasks), options), display)


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
@plan_options(*HOST_OPTIONS, _name)
@launch_options(chaos_option)
@click.argument("line", nargs=-1, metavar="SCRIPT [ARGS]...", type=click.UNPROCESSED)
def run(
    module: str | None,
    no_python: bool,
    changes: PlanOptions,
    line: tuple[str, ...],
    options: LaunchOptions,
    display: Display,
) -> int:
    """Run SCRIPT as the workers of one cluster; ARGS are passed to the script.

    The workers run on this machine or, with --hosts, on other machines through ssh. With
    --no-python, SCRIPT is any command: a program on PATH, or a file such as ./bench.sh.
    """
    if module is not None and no_python:
        raise UsageError("-m and --no-python exclude each other", fix="leave one of them out")
    program, *args = (module, *line) if module is not None else line or ("",)
    kind: Literal["script", "module", "command"] = "command" if no_python else "script"
    if module is not None:
        kind = "module"
    _check_program(program, args, kind)
    hosts = changes.hosts
    if kind == "command" and hosts.hosts is None and hosts.hostfile is None:
        _check_command(program)
    spec = spec_of_program(program, args, workers=hosts.workers or 2, kind=kind)
    loaded = load(spec, changes, where="tfcluster run")
    planned = planning.plan(loaded, changes, meanwhile=preimport)
    return launch(make_launch(planned, options), display)


def _check_program(program: str, args: Sequence[str], kind: str) -> None:
    """Raise UsageError, with the right command, for what is not the program that `kind` says."""
    if not program:
        raise UsageError("no script to run", fix="tfcluster run [-n 2] SCRIPT [ARGS…]")
    if program.startswith("-") and not os.path.isfile(program):
        context = click.get_current_context()
        known = [name for option in context.command.params for name in option.opts]
        near = difflib.get_close_matches(program, known, n=1)
        near = ["-n"] if re.search("worker|proc", program) else near
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


def _is_other_program(path: Path) -> bool:
    """Return whether a file is a shell script or a binary."""
    try:
        with path.open("rb") as file:
            start = file.readline(200)
    except OSError:
        return False
    is_foreign = start.startswith(b"#!") and b"python" not in start
    return is_foreign or path.suffix == ".sh" or start.startswith(b"\x7fELF")
