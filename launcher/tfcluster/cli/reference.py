"""Generates ``docs/commands.md``: ``python -m tfcluster.cli.reference FILE``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from tfcluster.cli.main import GROUPS, cli

_HEAD = """\
# The commands

Generated from the command tree by `python -m tfcluster.cli.reference docs/commands.md`; do not edit
it by hand.

RUN is a run's id, the last four characters of the id, the run's name or its spec file. If RUN is
left out, it is the latest run; for `attach`, `down` and `wait` it is the only live run, and if none
is live, `wait` takes the latest run that was started with `-d` and has not been waited for. The
exit codes are in the README.
"""


def render() -> str:
    """Return the whole page as Markdown."""
    return "\n".join([_HEAD, *_sections()])


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its name, in the order of the help."""
    context = click.Context(cli, info_name="tfcluster")
    for group in GROUPS.values():
        for name in group:
            command = cli.get_command(context, name)
            assert command is not None
            yield name, command


def _sections() -> Iterator[str]:
    for name, command in commands():
        context = click.Context(command, info_name=f"tfcluster {name}")
        usage = " ".join(["tfcluster", name, *command.collect_usage_pieces(context)])
        yield f"## `{usage}`\n"
        yield f"{inspect.cleandoc(command.help or '')}\n"
        options = [p for p in command.params if isinstance(p, click.Option)]
        if options:
            yield "| option | |\n|---|---|"
            yield from (_row(option, context) for option in options)
            yield ""


def _row(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    spelling, text = record if record else (", ".join(option.opts), "")
    return f"| `{spelling}` | {text} |".replace("||", "|")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
