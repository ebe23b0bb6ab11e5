"""`tfcluster rm`: delete the folders of runs that are over."""

from __future__ import annotations

import click

from tfcluster.errors import UsageError
from tfcluster.run import registry
from tfcluster.run.paths import RunPaths
from tfcluster.ui.terminal import Terminal


@click.command("rm")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--json", "as_json", is_flag=True, help="A JSON array of the runs deleted.")
def command(runs: tuple[str, ...], as_json: bool) -> None:
    """Delete the folders of RUNs: logs, checkpoints, outputs. A live run is refused."""
    terminal = Terminal()
    doomed = {paths.run_id: paths for paths in map(registry.resolve, runs)}
    for paths in doomed.values():
        if _is_live(paths):
            raise UsageError(
                f"{paths.run_id} is live", cure=f"end it first: `tfcluster down {paths.run_id}`"
            )
    for paths in doomed.values():
        _end_what_is_left(paths)
        registry.delete(paths)
        terminal.say(f"deleted {paths.run_id}")
    if as_json:
        terminal.emit_json(list(doomed))


def _is_live(paths: RunPaths) -> bool:
    try:
        return not registry.load(paths).status.is_final
    except registry.DamagedRunError:
        return registry.is_answered(paths)


def _end_what_is_left(paths: RunPaths) -> None:
    try:
        is_open = registry.is_open(registry.load(paths))
    except registry.DamagedRunError:
        from tfcluster.run.lost import end_processes

        end_processes(paths.run_id)
        return
    if is_open:
        from tfcluster.run.lost import clean_up  # psutil: only where it is needed

        clean_up(paths)
