"""`tfcluster report`, `compare`, `checkpoints`, `tensorboard`: the results of runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

import click

from tfcluster.agent.error_text import reason_of
from tfcluster.api import get_run
from tfcluster.backends import job_watch
from tfcluster.checkpoints.copying import SourceChangedError
from tfcluster.checkpoints.store import Damaged, Gathered, best_of, fill
from tfcluster.cli.completion import run_names
from tfcluster.cli.options import write_output
from tfcluster.cli.scheduler_runs import SchedulerChoice, option_of, scheduler_options
from tfcluster.coordinator.curves import tensorboard_server
from tfcluster.errors import SetupError, UsageError
from tfcluster.run_handle import Run
from tfcluster.rundir import registry
from tfcluster.ui.panels import checkpoints_grid
from tfcluster.ui.render import UNLIMITED, stdout_text
from tfcluster.ui.terminal import Terminal


@click.command("report")
@click.argument("run", required=False, shell_complete=run_names)
@click.option("-o", "--output", "target", metavar="FILE",
              help="The page to write (default: RUN.html here); - is stdout.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the data of the page as JSON.")
def report(run: str | None, target: str | None, as_json: bool) -> None:
    """Write a page about RUN (default: the latest run): charts, diagnosis, timeline, plan.

    The page is one HTML file that a browser opens from the disk: it loads nothing. Secrets are
    masked.
    """
    from tfcluster.web.rendering import render_file
    from tfcluster.web.run_data import describe_report

    data = describe_report(registry.resolve(run), now=time.time())
    if as_json:
        Terminal().emit_json(data)
    else:
        page = render_file("run", data, run_id=data["run"])
        write_output(page, target or f"{data['run']}.html")


@click.command("compare")
@click.argument("runs", metavar="RUN RUN...", nargs=-1, required=True, shell_complete=run_names)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array with an object a run.")
def compare(runs: tuple[str, ...], as_json: bool) -> None:
    """Compare two to six runs: how they ended, their results, and how their specs differ."""
    from tfcluster.web import comparison

    selected = list(dict.fromkeys(registry.resolve(run) for run in runs))
    if not 2 <= len(selected) <= comparison.MOST_RUNS:
        raise UsageError(
            f"compare takes 2 to {comparison.MOST_RUNS} different runs, not {len(selected)}",
            fix="`tfcluster ps -a` lists all runs",
        )
    terminal, compared = Terminal(), comparison.compare(selected, now=time.time())
    if as_json:
        terminal.emit_json(compared.to_json())
    else:
        tables = compared.tables(terminal.stdout.width() or UNLIMITED)
        terminal.out("\n\n".join(stdout_text(table, terminal) for table in tables))


@click.command("checkpoints")
@click.argument("run", required=False, shell_complete=run_names)
@click.option("--path", "only_path", is_flag=True, help="Print only the path of the newest one.")
@click.option("--best", is_flag=True,
              help="With --path or --copy: the best one that an evaluator found.")  # fmt: skip
@click.option("--copy", "target", metavar="DIR", type=click.Path(path_type=Path),
              help="Copy the newest one into DIR, a new or empty folder.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array, oldest first.")
@scheduler_options
def checkpoints(
    run: str | None,
    only_path: bool,
    best: bool,
    target: Path | None,
    as_json: bool,
    choice: SchedulerChoice,
) -> None:
    """List or copy the checkpoints gathered from the chief of RUN (default: the latest run)."""
    terminal = Terminal()
    chosen = choice.find_run(run)
    state = chosen.state()  # it copies first what a cluster has
    chosen.gather_left(terminal.say_wrapped)
    gathered = chosen.checkpoints
    rows = [_to_json(checkpoint, best_of(gathered)) for checkpoint in gathered]
    if best and not (only_path or target):
        raise UsageError("--best chooses what --path prints or --copy copies", fix="add --path")
    if target is not None and best:
        _copy(_require_best(chosen), target, terminal)
    elif target is not None:
        _copy_newest(chosen, target, terminal)
    elif only_path:
        terminal.out(str((_require_best if best else _require_newest)(chosen).path))
    elif as_json:
        terminal.emit_json(rows)
    elif gathered:
        terminal.out(stdout_text(checkpoints_grid(rows), terminal))
    elif state.checkpoints and state.job is not None and not state.status.is_final:
        name = chosen.id + option_of(chosen.paths, state.job["backend"])
        count, at_end = len(state.checkpoints), f"`tfcluster attach {name}` waits for it"
        terminal.say_wrapped(
            f"{chosen.id} has gathered {count} checkpoints where its coordinator runs; they are"
            f" copied here at its end: {at_end}"
        )
    else:
        terminal.say(f"{chosen.id} has gathered no checkpoint")
    if target is None:
        for damaged in chosen.damaged_checkpoints:
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


def _require_best(run: Run) -> Gathered:
    if (best := run.best_checkpoint) is None:
        fix = "an evaluator that calls tfcluster_workers.evaluator.evaluate_checkpoints does"
        raise UsageError(f"nothing has evaluated the checkpoints of {run.id}", fix=fix)
    return best


def _copy_newest(run: Run, target: Path, terminal: Terminal) -> None:
    """Copy the newest checkpoint that is not damaged, and say which newer ones are."""
    _require_newest(run)
    newest_first = [*reversed(run.checkpoints)]
    newest_first.sort(key=lambda checkpoint: checkpoint.kind == "backup")
    for checkpoint in newest_first:
        if damage := checkpoint.find_damage():
            terminal.say_wrapped(str(Damaged(checkpoint.folder, damage)))
        else:
            _copy(checkpoint, target, terminal)
            return
    raise UsageError(
        f"all checkpoints that {run.id} has gathered are damaged",
        fix=f"what can be read of them is in {run.paths.checkpoints}",
    )


def _copy(checkpoint: Gathered, target: Path, terminal: Terminal) -> None:
    if os.path.exists(target) and not (os.path.isdir(target) and not os.listdir(target)):
        raise UsageError(f"{target} is not an empty folder", fix="name a new or an empty folder")
    try:
        fill(target, [checkpoint])
    except (SourceChangedError, OSError) as error:
        raise UsageError(f"cannot copy to {target}: {reason_of(error)}") from error
    terminal.say(f"copied {checkpoint.path.name} to {target}")


def _to_json(checkpoint: Gathered, best: Gathered | None) -> dict[str, object]:
    score = None if checkpoint.score is None else str(checkpoint.score)
    return {
        "step": checkpoint.step,
        "save": checkpoint.save,
        "kind": str(checkpoint.kind),
        "bytes": checkpoint.bytes,
        "evaluated": score,
        "is_best": checkpoint is best,
        "path": str(checkpoint.path),
    }


@click.command("tensorboard")
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=run_names)
@click.option("--port", type=click.IntRange(0, 65535),
              help="Port (default: 6006, or the next free one; 0: any).")  # fmt: skip
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
def tensorboard(runs: tuple[str, ...], port: int | None, opens: bool) -> None:
    """Serve the curves of RUNs (default: the latest run) in TensorBoard, on this machine only.

    Uses the TensorBoard of the tasks' Python. Curves of a live run, also those of other hosts, are
    updated while it trains. Ctrl-C ends it.
    """
    terminal = Terminal()
    selected = [get_run(run).paths for run in runs or (None,)]
    python = tensorboard_server.choose_python(map(registry.load_plan, selected))
    for paths in selected:
        with contextlib.suppress(registry.DamagedRunError):
            job_watch.load(paths)  # from here on the files of a run in a cluster are copied
        if not paths.has_curves():
            terminal.say_wrapped(f"{paths.run_id} has no TensorBoard files (yet)", "yellow")
    for sentence in job_watch.silences():
        terminal.say_wrapped(sentence, "yellow")
    has_profiles = any(paths.profiles.exists() for paths in selected)
    if has_profiles and (advice := tensorboard_server.explain_profiles(python)):
        terminal.say_wrapped(advice)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(terminal, python, [paths.curves for paths in selected], port, opens))


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
