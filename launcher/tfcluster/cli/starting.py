"""`tfcluster up`, `run` and `join`: start a run, and show it to its end."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Literal

import click
from click.shell_completion import CompletionItem

from tfcluster import api
from tfcluster.api import make_launch, require_scheduler, spec_of_program
from tfcluster.cli.completion import run_names, task_names
from tfcluster.cli.options import (
    ENV_OPTIONS,
    HOST_OPTIONS,
    Display,
    WithJobArgs,
    backend_option,
    chaos_option,
    dry_run_option,
    launch_options,
    on_end_option,
    plan_options,
    skip_options,
)
from tfcluster.cli.other_options import OTHER_OPTIONS, misplaced, options_of
from tfcluster.coordinator import resume as resuming
from tfcluster.discovery import planning
from tfcluster.discovery.planning import Planned, plan_own_part
from tfcluster.errors import PreflightError, SetupError, TfclusterError, UsageError
from tfcluster.kinds import leave_allocation
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.states import Status
from tfcluster.spec import SPEC_NAMES, LaunchOptions, PlanOptions
from tfcluster.ui.terminal import Terminal

if TYPE_CHECKING:
    from tfcluster.coordinator.launch import End, Launch
    from tfcluster.plans.plan import Plan
    from tfcluster.ui.follow import RunView


_name = click.option("--name", metavar="NAME",
                     help="Name of the run (default: that of the spec or script).")  # fmt: skip


@click.command("up", cls=WithJobArgs)
@click.argument("spec", required=False)
@plan_options(*HOST_OPTIONS, backend_option, _name, *ENV_OPTIONS, on_end_option)
@dry_run_option
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
    dry_run: bool,
    submits: bool,
    resume: str | None,
    excepted: tuple[str, ...],
    options: LaunchOptions,
    display: Display,
) -> int:
    """Start the tasks of SPEC (./tfcluster.json; - = standard input) and show their output.

    With -d the run continues in the background: see `attach`, `logs -f`, `status`, `wait`, `down`.
    At a terminal the key d leaves it to the background later, ? shows the keys, and closing the
    terminal ends the run.

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
    if dry_run:
        return _show_plan(planned, display)
    return launch(make_launch(planned, options, resume=resumed), display)


@click.command("join", cls=WithJobArgs)
@click.argument("spec", required=False)
@click.option("--task", "names", multiple=True, metavar="TASK", shell_complete=task_names,
              help="Start worker:1, whatever its address; may be repeated.")  # fmt: skip
@plan_options(_name, *ENV_OPTIONS, on_end_option)
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
    port for every task. With numbers of tasks, the addresses are those of the launcher around it:
    TF_CONFIG, Vertex AI, SageMaker, Azure, mpirun, Flux, Slurm, PBS, LSF. Tasks are never
    restarted; to resume, set checkpoints.dir to storage that all machines share.

    ARGS after -- are appended to the job's own. Exit codes: those of `up`, and 5 if tasks failed
    here only because of a failure on another machine: start all machines again.
    """
    planned, tasks = plan_own_part(spec, names, changes)
    given = planned.allocation
    # Such a task may have another machine's address, which the checks would refuse.
    if names or (given is not None and given.task is not None):
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
@plan_options(*HOST_OPTIONS, _name, *ENV_OPTIONS, on_end_option)
@dry_run_option
@launch_options(chaos_option)
@click.argument("line", nargs=-1, metavar="SCRIPT [ARGS]...", type=click.UNPROCESSED)
def run(
    module: str | None,
    no_python: bool,
    changes: PlanOptions,
    dry_run: bool,
    line: tuple[str, ...],
    options: LaunchOptions,
    display: Display,
) -> int:
    """Run SCRIPT as the workers of one cluster; ARGS are passed to the script.

    SCRIPT may be a notebook (.ipynb): every worker runs its code cells, without magics.
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
    if kind == "script":
        _warn_of_misplaced(program, args)
    hosts = changes.hosts
    if kind == "command" and hosts.hosts is None and hosts.hostfile is None:
        _check_command(program)
    spec = spec_of_program(program, args, workers=hosts.workers or 2, kind=kind)
    loaded = planning.load(spec, changes, where="tfcluster run")
    planned = planning.plan(loaded, changes, meanwhile=preimport)
    if dry_run:
        return _show_plan(planned, display)
    return launch(make_launch(planned, options), display)


def _show_plan(planned: Planned, display: Display) -> int:
    from tfcluster.cli.checking import show_plan

    show_plan(planned, as_json=display.as_json)
    return 0


def _check_program(program: str, args: Sequence[str], kind: str) -> None:
    """Raise UsageError, with the right command, for what is not the program that `kind` says."""
    if not program:
        raise UsageError("no script to run", fix="tfcluster run [-n 2] SCRIPT [ARGS…]")
    if program.startswith("-") and not os.path.isfile(program):
        context, option = click.get_current_context(), program.partition("=")[0]
        near = difflib.get_close_matches(option, options_of(context.command), n=1)
        hint = f" Did you mean {near[0]!r}?" if near and option not in OTHER_OPTIONS else ""
        raise click.NoSuchOption(option, f"No such option {option!r}.{hint}", ctx=context)
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


def _warn_of_misplaced(program: str, args: Sequence[str]) -> None:
    """Warn of options after SCRIPT that are `run`'s, and that the script does not mention."""
    try:
        code = Path(os.path.expanduser(program)).read_text(errors="replace")
    except OSError:
        return
    ours, rest = misplaced(args, click.get_current_context().command, code)
    if ours:
        before = map(_without_secret, sys.argv[1 : len(sys.argv) - len(args) - 1])
        line = shlex.join(["tfcluster", *before, *ours, program, *rest])
        sentence = f"warning: {shlex.join(ours)} comes after {program}, so the script gets it"
        Terminal().say(f"{sentence}\n  → if it is meant for tfcluster: {line}")


def _without_secret(word: str) -> str:
    """Return a word of the command line without the value of a secret variable."""
    from tfcluster.plans.secrets import is_secret

    variable = re.match(r"(?:-e|--env=)?(?:[\w-]+\.)*(\w+)=", word)
    if variable is None or not is_secret(variable[1], named=(), shown=()):
        return word
    return f"{variable[0]}…"


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


def preimport() -> None:
    """Import the modules that a start needs, while the tasks' Python is being probed."""
    modules = (
        "coordinator.foreground",
        "backends.local.local_nodes",
        "ui.follow",
        "ui.plan_view",
        "cli.watching",
    )
    for module in modules:
        import_module(f"tfcluster.{module}")


def launch(made: Launch, display: Display) -> int:
    """Run a launch, in the foreground to its end, and return the command's exit code.

    Raises a TfclusterError for whatever prevents the start.
    """
    shown = _ShownRun(made, display)
    try:
        end = api.launch(made, shown)
    except BaseException:  # the terminal gets its settings back
        shown.give_up()
        raise
    if end is None:
        return 0
    if not end.state.status.is_final:  # the user has left a run whose coordinator is elsewhere
        return end.outcome.exit_code
    if made.options.detach and end.outcome.status is Status.SUCCEEDED:
        shown.left()
        return 0
    return shown.conclude(end)


class _ShownRun:
    """A run that is shown on the terminal; a watcher of `api.launch`."""

    def __init__(self, made: Launch, display: Display) -> None:
        self._launch, self._display, self._detaches = made, display, made.options.detach
        self._terminal = Terminal()
        self._paths: RunPaths
        self._view: RunView | None = None

    def has_keys(self) -> bool:
        from tfcluster.ui.job_control import Keyboard

        # A container, or a pod, ends with its first process: the run could not go on.
        return self._terminal.has_footer and os.getpid() != 1 and Keyboard().is_there

    def opened(self, paths: RunPaths, plan: Plan, leave: Callable[[], None] | None = None) -> None:
        from tfcluster.rundir.task_logs import tail_offset
        from tfcluster.ui.follow import Leaving, RunView
        from tfcluster.ui.merged_logs import LogFilter

        self._paths = paths
        log_filter, again = None, registry.load_recorded(paths).continued
        if self._detaches:
            log_filter = LogFilter(last_attempt=-1)
        elif again is not None:  # the former start of the job has shown the rest
            log_filter = LogFilter(first_attempt=again["attempt"])
        self._view = RunView(
            paths,
            self._terminal,
            json_lines=self._display.as_json and not self._detaches,
            log_filter=log_filter,
            collapse=self._display.collapse,
            native=self._display.native_logs,
            events_offset=tail_offset(paths.events, 1) if again is not None else 0,
            leaving=None if leave is None else Leaving(leave, *self._other_ends()),
        )
        self._view.start()

    def _other_ends(self) -> tuple[str, str]:
        """Return what Ctrl-C does, and what closing the terminal does."""
        if self._launch.is_submitted:
            return "ask whether to leave the run or to cancel it", "leaves the run"
        return "stop the run; a second one kills its tasks at once", "ends the run"

    def announced(self, plan: Plan) -> None:
        from tfcluster.ui.plan_view import start_panel
        from tfcluster.ui.render import render

        resume = self._launch.resume
        resumes = (resume.source.run_id, resume.newest.step, resume.checkpoint) if resume else None
        panel = start_panel(plan, self._paths, resumes=resumes)
        self.said(render(panel, self._terminal))

    def left(self) -> None:
        """Say how to come back to a run that continues in the background; with -d, print its id."""
        self._finish(has_ended=False)
        run, terminal = self._paths.run_id, self._terminal
        if not self._detaches:
            pass  # its id is above, and stdout belongs to the output of its tasks
        elif self._display.as_json:
            terminal.emit_json({"run": run, "folder": str(self._paths.root)})
        else:
            terminal.out(run)
        from tfcluster.coordinator.launch import with_lease

        short = run[-4:]
        terminal.say_wrapped(
            f"the run continues in the background: `tfcluster attach {short}` shows it,"
            f" `tfcluster down {short}` stops it"
        )
        _say_lease(with_lease(self._launch.plan, self._launch.spec), terminal)

    def ask(self, question: str) -> bool:
        """Show a question, or take it away (""); return False without a terminal."""
        return self._view is not None and self._view.ask(question)

    def choice(self) -> str | None:
        """Return what the key says that was typed since the question, if it says anything."""
        answer = self._view.answer if self._view is not None else ""
        return {"l": "leave", "d": "leave", "c": "cancel"}.get(answer)

    def said(self, sentence: str) -> None:
        if self._view is not None:
            self._view.say(sentence)

    def give_up(self) -> None:
        """Show the rest of a run whose coordinator is gone; nothing if it has not begun."""
        self._finish()

    def conclude(self, end: End) -> int:
        """Show how the run ended; return its exit code, or raise the error that it ended with."""
        from tfcluster.cli.watching import show_end

        self._finish()
        state, error, terminal = end.state, end.outcome.error, self._terminal
        if end.outcome.comes_back:
            terminal.say_wrapped("the run continues when its job runs again")
            return end.outcome.exit_code
        if self._detaches and any(task.started_at is None for task in state.tasks):
            terminal.say_wrapped(f"{state.run} ended before all of its tasks had started")
        if state.attempt or error is None:
            show_end(state, end.paths, terminal, with_reason=False)
        if end.unrecorded:
            folder = end.paths.root
            terminal.say(f"warning: {folder} does not record how the run ended: {end.unrecorded}")
        if error is not None:
            raise error if state.attempt else _show_findings(error, end.paths, terminal)
        return end.outcome.exit_code

    def _finish(self, *, has_ended: bool = True) -> None:
        """Show the remaining output; Ctrl-C skips it (``tfcluster logs`` has it)."""
        with contextlib.suppress(KeyboardInterrupt):
            while self._view is not None and not self._view.finish(0.5, has_ended=has_ended):
                pass


def _say_lease(plan: Plan, terminal: Terminal) -> None:
    from tfcluster.coordinator.cleanup import outliving
    from tfcluster.ui.formats import format_duration

    if any(not node.capabilities.on_one_machine for node in outliving(plan)):
        terminal.say_wrapped(
            f"its coordinator runs on this machine ({gethostname()}): if this machine"
            " sleeps or loses its network, the hosts keep training for"
            f" {format_duration(plan.supervision.lease_s)}"
            " (supervision.lease_s), then stop their tasks"
        )


def _show_findings(error: TfclusterError, paths: RunPaths, terminal: Terminal) -> TfclusterError:
    """Print what the checks of the nodes have found as a table; return the error without that.

    If nothing that they found has kept the run from starting, return `error` as it is.
    """
    from tfcluster.preflight.preflight_report import read_report
    from tfcluster.ui.preflight_table import format_report

    report = read_report(paths)
    if report is None or not report.fatal:
        return error
    colours = terminal.has_colour(terminal.stderr)
    terminal.say(format_report(report, width=terminal.stderr.width(), colours=colours))
    return SetupError(PreflightError.HEAD, fix="check again: tfcluster doctor SPEC")
