"""`tfcluster checkpoints`: list or copy the checkpoints gathered from the chief."""

from __future__ import annotations

import os
from pathlib import Path

import click

from tfcluster.agent.error_text import reason_of
from tfcluster.checkpoints.completeness import Kind
from tfcluster.checkpoints.restore import fill
from tfcluster.checkpoints.store import Gathered, open_for_reading
from tfcluster.cli.completion import files
from tfcluster.errors import UsageError
from tfcluster.rundir import registry
from tfcluster.ui.panels import checkpoints_grid
from tfcluster.ui.render import stdout_text
from tfcluster.ui.terminal import Terminal


@click.command("checkpoints")
@click.argument("run", required=False, shell_complete=files)
@click.option("--path", "only_path", is_flag=True, help="Print only the path of the newest one.")
@click.option("--copy", "target", metavar="DIR", type=click.Path(path_type=Path),
              help="Copy the newest one into DIR, a new or empty folder.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array, oldest first.")
def command(run: str | None, only_path: bool, target: Path | None, as_json: bool) -> None:
    """List or copy the checkpoints gathered from the chief of RUN (default: the latest run)."""
    terminal = Terminal()
    paths = registry.resolve(run)
    checkpoints = open_for_reading(paths.checkpoints)
    if target is not None:
        newest = _find_newest(checkpoints, paths.run_id)
        _copy(newest, target)
        terminal.say(f"copied {newest.path.name} to {target}")
    elif only_path:
        terminal.out(str(_find_newest(checkpoints, paths.run_id).path))
    elif as_json:
        terminal.emit_json([_to_json(checkpoint) for checkpoint in checkpoints])
    elif checkpoints:
        rows = checkpoints_grid([_to_json(checkpoint) for checkpoint in checkpoints])
        terminal.out(stdout_text(rows, terminal))
    else:
        terminal.say(f"{paths.run_id} has gathered no checkpoint")


def _find_newest(checkpoints: tuple[Gathered, ...], run_id: str) -> Gathered:
    """Return the newest result; a backup of an unfinished `fit` only if there is nothing else."""
    if not checkpoints:
        raise UsageError(
            f"{run_id} has gathered no checkpoint",
            fix="have the script save to the folder in $TFCLUSTER_CHECKPOINT_DIR",
        )
    return max(reversed(checkpoints), key=lambda checkpoint: checkpoint.kind is not Kind.BACKUP)


def _copy(checkpoint: Gathered, target: Path) -> None:
    if os.path.exists(target) and not (os.path.isdir(target) and not os.listdir(target)):
        raise UsageError(f"{target} is not an empty folder", fix="name a new or an empty folder")
    try:
        fill(target, [checkpoint])
    except OSError as error:
        raise UsageError(f"cannot copy to {target}: {reason_of(error)}") from error


def _to_json(checkpoint: Gathered) -> dict[str, object]:
    return {
        "step": checkpoint.step,
        "save": checkpoint.save,
        "kind": str(checkpoint.kind),
        "bytes": checkpoint.bytes,
        "path": str(checkpoint.path),
    }
