"""`tfcluster report`: write one page about a run, to read, keep or attach to a ticket."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import click

from tfcluster.agent.error_text import reason_of
from tfcluster.cli.completion import run_names
from tfcluster.errors import UsageError


@click.command("report")
@click.argument("run", required=False, shell_complete=run_names)
@click.option("-o", "--output", "target", metavar="FILE",
              help="The page to write (default: RUN.html here); - is stdout.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the data of the page as JSON.")
def command(run: str | None, target: str | None, as_json: bool) -> None:
    """Write a page about RUN (default: the latest run): charts, diagnosis, timeline, plan.

    The page is one HTML file that loads nothing and needs no script. Secrets are masked.
    """
    from tfcluster.report.gather import gather
    from tfcluster.report.page import render_report
    from tfcluster.rundir import registry
    from tfcluster.ui.terminal import Terminal

    report = gather(registry.resolve(run), now=time.time())
    if as_json:
        Terminal().emit_json(report.to_json())
    else:
        write_page(render_report(report), target or f"{report.run}.html")


def write_page(
    page: str,
    target: str,
    *,
    example: str = "FILE.html",
    announce: Callable[[str], object] | None = None,
) -> None:
    """Write a page to the file `target` and print its path; to stdout if `target` is ``-``.

    `example`: another file, for the message of a file that cannot be written; `announce` gets the
    path instead of stdout.
    """
    from tfcluster.ui.terminal import Terminal

    terminal, data = Terminal(), page.encode(errors="replace")  # JSON may hold lone surrogates
    if target == "-":
        terminal.out_lines(data)
        return
    try:
        Path(target).write_bytes(data)
    except OSError as error:
        fix = f"name another file: -o {example}"
        raise UsageError(f"{target} cannot be written: {reason_of(error)}", fix=fix) from error
    (announce or terminal.out)(target)
