"""`tfcluster rm`: delete the folders of runs that have ended."""

from __future__ import annotations

import click

from tfcluster.backends import past_runs
from tfcluster.cli.completion import files
from tfcluster.cli.down import collecting_errors, end_tasks_on_hosts
from tfcluster.errors import NodeLostError, SetupError, UsageError
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths
from tfcluster.ui.terminal import Terminal


@click.command("rm")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=files)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of the deleted runs.")
def command(runs: tuple[str, ...], as_json: bool) -> None:
    """Delete the folders of RUNs: logs, checkpoints, outputs. Live runs are refused."""
    terminal = Terminal()
    selected = {paths.run_id: paths for paths in map(registry.resolve, runs)}
    for paths in selected.values():
        if _is_live(paths):
            raise UsageError(
                f"{paths.run_id} is live", fix=f"stop it first: tfcluster down {paths.run_id}"
            )
    deleted, errors = list[str](), list[SetupError]()
    for paths in selected.values():
        with collecting_errors(errors):
            remove(paths, terminal)
            terminal.say(f"deleted {paths.run_id}")
            deleted.append(paths.run_id)
    if as_json:
        terminal.emit_json(deleted)
    NodeLostError.raise_all(errors)


def remove(paths: RunPaths, terminal: Terminal) -> None:
    """Delete the folder of an ended run, and clean up after a lost run on every host.

    Raises NodeLostError, and keeps the folder, if tasks may still run on a host.
    """
    _end_leftovers(paths, terminal)
    registry.delete(paths)
    for sentence in past_runs.forget_removed(paths.run_id):
        terminal.say_wrapped(sentence)


def _is_live(paths: RunPaths) -> bool:
    try:
        return not registry.load(paths).status.is_final
    except registry.DamagedRunError:
        return registry.is_answered(paths)


def _end_leftovers(paths: RunPaths, terminal: Terminal) -> None:
    try:
        is_open = registry.is_open(registry.load(paths))
    except registry.DamagedRunError:
        from tfcluster.coordinator.cleanup import end_processes

        end_processes(paths.run_id)
        return
    if is_open:
        from tfcluster.coordinator.cleanup import clean_up  # imports psutil, which is slow

        clean_up(paths)
        end_tasks_on_hosts(paths, terminal)
