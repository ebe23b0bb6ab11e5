"""`tfcluster tensorboard`: serve the curves of runs in TensorBoard until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

import click

from tfcluster.api import get_run
from tfcluster.backends import job_watch
from tfcluster.cli.completion import run_names
from tfcluster.coordinator.curves import tensorboard_server
from tfcluster.errors import SetupError
from tfcluster.rundir import registry
from tfcluster.ui.terminal import Terminal


@click.command("tensorboard")
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=run_names)
@click.option("--port", type=click.IntRange(0, 65535),
              help="Port (default: 6006, or the next free one; 0: any).")  # fmt: skip
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
def command(runs: tuple[str, ...], port: int | None, opens: bool) -> None:
    """Serve the curves of RUNs (default: the latest run) in TensorBoard, on this machine only.

    Uses the TensorBoard of the tasks' Python. Curves of a live run, also those of other hosts, are
    updated while it trains. Ctrl-C ends it.
    """
    terminal = Terminal()
    found = [get_run(run).paths for run in runs or (None,)]
    python = tensorboard_server.choose_python(map(registry.load_plan, found))
    for paths in found:
        with contextlib.suppress(registry.DamagedRunError):
            job_watch.load(paths)  # from here on the files of a run in a cluster are copied
        if not paths.has_curves():
            terminal.say_wrapped(f"{paths.run_id} has no TensorBoard files (yet)", "yellow")
    for sentence in job_watch.silences():
        terminal.say_wrapped(sentence, "yellow")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(terminal, python, [paths.curves for paths in found], port, opens))


async def _serve(
    terminal: Terminal, python: str, curves: Sequence[Path], port: int | None, opens: bool
) -> None:
    terminal.say("starting TensorBoard …")
    with tensorboard_server.common_folder(curves) as folder:
        async with tensorboard_server.serving(python, folder, port) as server:
            url = await server.url()
            terminal.out(url)
            terminal.say("Ctrl-C ends it")
            if opens:
                click.launch(url)
            await server.wait()
            raise SetupError("TensorBoard has ended")
