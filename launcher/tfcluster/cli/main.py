"""The `tfcluster` command: finds the one command asked for, and prints every error once."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import os
import signal
import sys
import traceback

import click

from tfcluster import __version__
from tfcluster.agent.processes import raise_limit
from tfcluster.errors import SurroundingsError, TfclusterError
from tfcluster.ui.terminal import Terminal

GROUPS: dict[str, dict[str, str]] = {
    "Run": {
        "up": "Start the cluster of a spec and stay with it to its end.",
        "join": "Start this machine's tasks of a cluster, the others start elsewhere.",
        "run": "Run a script as N workers on this machine, without a spec.",
    },
    "Look": {
        "ps": "List live runs (-a: all).",
        "status": "Show one run: its tasks, progress, diagnosis.",
        "logs": "Show or follow the tasks' output.",
        "attach": "Watch a run from another terminal.",
        "checkpoints": "List or copy what was gathered.",
    },
    "End": {
        "down": "Stop a run.",
        "wait": "Wait for a run, exit with its code.",
        "rm": "Delete the folders of runs that are over.",
        "prune": "Delete old runs.",
    },
    "Before": {
        "init": "Write a first spec.",
        "plan": "Show what would be started, start nothing.",
        "validate": "Check a spec.",
        "doctor": "Look at all nodes for what would stop a start.",
        "build": "Build the image that containers start from.",
    },
    "Glue": {
        "env": "Print a task's environment as shell exports.",
        "schema": "Print the JSON schema of the spec.",
        "completion": "Print the shell's completion script.",
        "help": "Print a page of the documentation.",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}


class LazyGroup(click.Group):
    """Imports a command's module when it is used, so that `--version` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"tfcluster.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if not (near := difflib.get_close_matches(args[0], COMMANDS, n=1)):
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tfcluster")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors that have a message.")
def cli(debug: bool) -> None:
    """Launch, watch and gather multi-worker TensorFlow training."""


def main() -> None:
    """Entry point; exit codes are those of ``tfcluster.errors`` and of the run."""
    raise_limit()
    debug = "--debug" in sys.argv[1:2] or bool(os.environ.get("TFCLUSTER_DEBUG"))
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        Terminal().say(shown.getvalue())
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:
        code = _leave_quietly()
    except TfclusterError as error:
        if debug:
            Terminal().say(traceback.format_exc())
        Terminal().say(f"tfcluster: {error}")
        code = error.exit_code
    except Exception as fault:
        if isinstance(fault, FileNotFoundError) and not _has_folder():
            Terminal().say("tfcluster: the current folder was deleted\n  → cd to another one")
            sys.exit(SurroundingsError.exit_code)
        Terminal().say(traceback.format_exc())
        Terminal().say("tfcluster: this is a fault in tfcluster, please report it")
        code = TfclusterError.exit_code
    sys.exit(code if isinstance(code, int) else 0)


def _has_folder() -> bool:
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


def _leave_quietly() -> int:
    """The reader of stdout has gone (`tfcluster ps | head -1`): nothing more to say."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def entry() -> None:
    """The installed command: `main`, without the interpreter's own shutdown.

    Everything is written and ended by then; taking the modules apart costs a tenth of a second,
    and a Ctrl-C in it would turn a success into a failure.
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
