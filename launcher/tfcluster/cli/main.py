"""The `tfcluster` command: runs the requested subcommand and prints every error once."""

from __future__ import annotations

import contextlib
import difflib
import gc
import importlib
import io
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING

import click

from tfcluster import __version__
from tfcluster.agent.processes import raise_limit
from tfcluster.errors import SetupError, TfclusterError
from tfcluster.spec import PYTHON_ENDINGS
from tfcluster.ui.terminal import Terminal

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

GROUPS: dict[str, dict[str, str]] = {
    "Run": {
        "up": "Start the cluster of a spec and follow it to its end.",
        "join": "Start this machine's tasks of a cluster.",
        "run": "Run a script as N workers on this machine, without a spec.",
        "restart": "Start a run again, from its newest checkpoint.",
    },
    "Watch": {
        "ps": "List live runs (-a: all runs).",
        "top": "Watch the progress of all live runs.",
        "status": "Show one run: its tasks, progress, diagnosis.",
        "attach": "Watch a run from another terminal.",
        "logs": "Show or follow the tasks' output.",
        "stacks": "Show where the tasks of a live run are.",
        "exec": "Run a command, or a shell, beside a task of a live run.",
        "debug": "Attach a debugger to a task of a live run.",
        "profile": "Trace steps of a live run, and show where their time goes.",
        "ui": "Show all runs on a web page.",
    },
    "Results": {
        "report": "Write a page about a run, fit for a ticket.",
        "compare": "Show runs beside each other.",
        "checkpoints": "List or copy the gathered checkpoints.",
        "tensorboard": "Show the curves of runs in TensorBoard.",
        "scale": "Measure how a job scales with more workers.",
    },
    "Stop and clean up": {
        "scale-to": "Change the number of workers of a live run.",
        "down": "Stop a run.",
        "wait": "Wait for a run and exit with its exit code.",
        "rm": "Delete the folders of runs that have ended.",
        "prune": "Delete old runs.",
    },
    "Prepare": {
        "init": "Write a first spec.",
        "plan": "Show what would be started, without starting it.",
        "validate": "Check a spec.",
        "doctor": "Check all nodes for what would stop a start.",
        "build": "Build the image that containers start from.",
    },
    "Tools": {
        "env": "Print a task's environment as shell exports.",
        "export": "Print the cluster as a file of another tool: Compose, sbatch, Kubernetes.",
        "import": "Turn a Kubeflow TFJob into a spec.",
        "schema": "Print the JSON schema of the spec.",
        "completion": "Print the shell's completion script.",
        "help": "Print a page of the documentation.",
    },
}
OTHER_WORDS = {
    **dict.fromkeys(("start", "launch", "submit", "train"), "up` or `run"),
    **dict.fromkeys(("list", "ls", "runs", "jobs"), "ps"),
    **dict.fromkeys(("stop", "kill", "cancel", "halt"), "down"),
    **dict.fromkeys(("delete", "remove"), "rm"),
    **dict.fromkeys(("show", "info", "describe"), "status"),
    **dict.fromkeys(("check", "lint"), "validate"),
    **dict.fromkeys(("new", "create"), "init"),
    **dict.fromkeys(("convert", "migrate"), "import"),
    **dict.fromkeys(("follow", "watch", "monitor"), "attach"),
    **dict.fromkeys(("stack", "traceback", "py-spy"), "stacks"),
    **dict.fromkeys(("trace", "xprof", "profiler"), "profile"),
    **dict.fromkeys(("resume", "rerun", "retry", "continue"), "restart"),
    **dict.fromkeys(("shell", "ssh", "sh", "bash"), "exec"),
    **dict.fromkeys(("debugpy", "pdb", "debugger"), "debug"),
    **dict.fromkeys(("resize", "grow", "shrink"), "scale-to"),
    **{"version": "--version", "dashboard": "ui", "web": "ui", "docs": "help", "dry-run": "plan"},
}
"""Words that other tools have for a command."""
REMOVED = {
    **dict.fromkeys(
        (("export", "jobset"), ("export", "indexed-job")),
        "`tfcluster up --backend kubernetes` starts the tasks in Kubernetes",
    ),
    **dict.fromkeys(
        (("compare", "-o"), ("compare", "--output")),
        "`tfcluster ui` shows the curves of several runs in the same charts",
    ),
    ("up", "--coordinator"): (
        "a run's coordinator at Kubernetes is always a pod: leave the option out"
    ),
    ("scale", "--repeats"): "each cell is a run of its own: for longer cells, increase --steps",
}
"""A command and a word that it no longer takes → what does its work."""
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}

COLLECT_AFTER = 50_000
"""New objects after which the garbage collector runs.

Python's own 700 makes it run 130 times while a start's modules are imported, a seventh of their
time, and it finds hardly any garbage.
"""

_MODULES = {
    **dict.fromkeys(("up", "run", "join"), "starting"),
    **dict.fromkeys(("validate", "plan", "doctor"), "checking"),
    **dict.fromkeys(("ps", "top", "status", "attach", "logs", "stacks", "ui"), "watching"),
    **dict.fromkeys(("report", "compare", "checkpoints", "tensorboard"), "results"),
    **dict.fromkeys(("scale-to", "down", "wait", "rm", "prune"), "ending"),
    **dict.fromkeys(("env", "export", "import", "schema", "build", "help"), "tools"),
}
"""Command → its module in `cli`, where it is not the one of its name."""


class LazyGroup(click.Group):
    """A command group that imports a command's module on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"tfcluster.cli.{_MODULES.get(cmd_name, cmd_name)}")
        commands = (value for value in vars(module).values() if isinstance(value, click.Command))
        return next(command for command in commands if command.name == cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if hint := _meant(args):
                raise click.UsageError(f"{error.message} {hint}", ctx) from None
            raise

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        items = [
            CompletionItem(name, help=text)
            for name, text in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))


def _meant(args: list[str]) -> str:
    """Return what the user of an unknown command may have meant, or ""."""
    word = args[0]
    if word.endswith(PYTHON_ENDINGS):
        return f"To run a script: tfcluster run {word}"
    if word.endswith((".json", ".jsonc", ".yaml", ".yml")):
        return f"To run a spec: tfcluster up {word}"
    if other := OTHER_WORDS.get(word):
        return f"Did you mean `{other}`?"
    near = difflib.get_close_matches(word, COMMANDS, n=1)
    return f"Did you mean {near[0]!r}?" if near else ""


def _successors(args: list[str]) -> str:
    """Return a line for each word of a command line that its command no longer takes."""
    words = {part for word in args[1:] for part in word.split("=")}
    return "".join(
        f"\n  → {successor}"
        for (command, word), successor in REMOVED.items()
        if [command] == args[:1] and word in words
    )


def _rewritten(error: click.ClickException, args: list[str]) -> str:
    """Return a line with the command that an option of other tools means here, or ""."""
    from tfcluster.cli.other_options import rewrite

    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None or isinstance(context.command, click.Group):
        return ""
    line = rewrite(args, context.command)
    return f"\n  → {line}" if line else ""


def _missing_run(error: click.ClickException) -> str:
    """Return a line about where the name of a run is found if a command lacks it, or ""."""
    parameter = error.param if isinstance(error, click.MissingParameter) else None
    if parameter is None or parameter.name not in ("run", "runs"):
        return ""
    return "\n  → `tfcluster ps -a` lists the runs; the last four characters of one are enough"


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tfcluster")
@click.option("--debug", is_flag=True, help="Show the traceback of every error.")
def cli(debug: bool) -> None:
    """Launch multi-worker TensorFlow training, watch it and gather its results.

    Run a script as two workers: `tfcluster run -n 2 train.py`. Or write a spec with `tfcluster
    init`, and start it with `tfcluster up`.
    """


def main() -> None:
    """Run the command line in `sys.argv`, then exit.

    The exit codes are those of ``tfcluster.errors`` and of the run.
    """
    if instruction := os.environ.get("_TFCLUSTER_COMPLETE"):
        from tfcluster.cli.completion import answer

        sys.exit(answer(cli, instruction))
    gc.set_threshold(COLLECT_AFTER)
    raise_limit()
    debug = "--debug" in sys.argv[1:2] or bool(os.environ.get("TFCLUSTER_DEBUG"))
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        text = io.StringIO()
        error.show(text)
        hint = _successors(sys.argv[1:]) or _rewritten(error, sys.argv[1:]) or _missing_run(error)
        Terminal().say(text.getvalue().rstrip("\n") + hint)
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:  # the reader has gone, as in `tfcluster ps | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except TfclusterError as error:
        if debug:
            Terminal().say(traceback.format_exc())
        Terminal().say(f"tfcluster: {error}")
        code = error.exit_code
    except Exception as fault:
        if isinstance(fault, FileNotFoundError) and not _has_current_folder():
            Terminal().say("tfcluster: the current folder was deleted\n  → cd to another one")
            sys.exit(SetupError.exit_code)
        Terminal().say(traceback.format_exc())
        Terminal().say("tfcluster: internal error (please report it)")
        code = TfclusterError.exit_code
    sys.exit(code if isinstance(code, int) else 0)


def _has_current_folder() -> bool:
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


def entry() -> None:
    """Run `main` and exit without the interpreter's shutdown: the installed command.

    By then everything is written. The shutdown costs a tenth of a second, and a Ctrl-C during it
    would turn a success into a failure.
    """
    try:
        main()
    except SystemExit as ended:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(ended.code if isinstance(ended.code, int) else 1)


if __name__ == "__main__":
    entry()
