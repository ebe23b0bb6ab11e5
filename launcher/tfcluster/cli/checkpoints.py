"""`tfcluster checkpoints`: list or copy the checkpoints gathered from the chief."""

from __future__ import annotations

import os
from pathlib import Path

import click

from tfcluster.agent.error_text import reason_of
from tfcluster.backends import job_watch
from tfcluster.checkpoints.copying import SourceChangedError
from tfcluster.checkpoints.store import Damaged, Gathered, fill
from tfcluster.cli.completion import run_names
from tfcluster.cli.elsewhere import SchedulerChoice, option_of, scheduler_options
from tfcluster.errors import UsageError
from tfcluster.run_handle import Run
from tfcluster.ui.panels import checkpoints_grid
from tfcluster.ui.render import stdout_text
from tfcluster.ui.terminal import Terminal


@click.command("checkpoints")
@click.argument("run", required=False, shell_complete=run_names)
@click.option("--path", "only_path", is_flag=True, help="Print only the path of the newest one.")
@click.option("--copy", "target", metavar="DIR", type=click.Path(path_type=Path),
              help="Copy the newest one into DIR, a new or empty folder.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array, oldest first.")
@scheduler_options
def command(
    run: str | None,
    only_path: bool,
    target: Path | None,
    as_json: bool,
    choice: SchedulerChoice,
) -> None:
    """List or copy the checkpoints gathered from the chief of RUN (default: the latest run)."""
    terminal = Terminal()
    found = choice.find_run(run)
    state = found.state()  # it copies first what a cluster has
    found.gather_left(terminal.say_wrapped)
    checkpoints = found.checkpoints
    if target is not None:
        _copy_newest(found, target, terminal)
    elif only_path:
        terminal.out(str(_require_newest(found).path))
    elif as_json:
        terminal.emit_json([_to_json(checkpoint) for checkpoint in checkpoints])
    elif checkpoints:
        rows = checkpoints_grid([_to_json(checkpoint) for checkpoint in checkpoints])
        terminal.out(stdout_text(rows, terminal))
    elif state.checkpoints and state.job is not None and not state.status.is_final:
        name = found.id + option_of(found.paths, state.job["backend"])
        count, at_end = len(state.checkpoints), f"`tfcluster attach {name}` waits for it"
        terminal.say_wrapped(
            f"{found.id} has gathered {count} checkpoints where its coordinator runs; they are"
            f" copied here at its end: {at_end}"
        )
    else:
        terminal.say(f"{found.id} has gathered no checkpoint")
    for damaged in () if target is not None else found.damaged_checkpoints:
        terminal.say_wrapped(str(damaged))
    for sentence in job_watch.silences():
        terminal.say_wrapped(sentence)


def _require_newest(run: Run) -> Gathered:
    if (newest := run.newest_checkpoint) is None:
        raise UsageError(
            f"{run.id} has gathered no checkpoint",
            fix="have the script save to the folder in $TFCLUSTER_CHECKPOINT_DIR",
        )
    return newest


def _copy_newest(run: Run, target: Path, terminal: Terminal) -> None:
    """Copy the newest checkpoint that is not damaged, and say which newer ones are."""
    _require_newest(run)
    newest_first = [*reversed(run.checkpoints)]
    newest_first.sort(key=lambda checkpoint: checkpoint.kind == "backup")
    for checkpoint in newest_first:
        if damage := checkpoint.find_damage():
            terminal.say_wrapped(str(Damaged(checkpoint.folder, damage)))
        else:
            _copy(checkpoint, target)
            terminal.say(f"copied {checkpoint.path.name} to {target}")
            return
    raise UsageError(
        f"all checkpoints that {run.id} has gathered are damaged",
        fix=f"what can be read of them is in {run.paths.checkpoints}",
    )


def _copy(checkpoint: Gathered, target: Path) -> None:
    if os.path.exists(target) and not (os.path.isdir(target) and not os.listdir(target)):
        raise UsageError(f"{target} is not an empty folder", fix="name a new or an empty folder")
    try:
        fill(target, [checkpoint])
    except (SourceChangedError, OSError) as error:
        raise UsageError(f"cannot copy to {target}: {reason_of(error)}") from error


def _to_json(checkpoint: Gathered) -> dict[str, object]:
    return {
        "step": checkpoint.step,
        "save": checkpoint.save,
        "kind": str(checkpoint.kind),
        "bytes": checkpoint.bytes,
        "path": str(checkpoint.path),
    }
