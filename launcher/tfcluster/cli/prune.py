"""`tfcluster prune`: delete old runs after a confirmation."""

from __future__ import annotations

import re
import time

import click

from tfcluster.backends import job_watch
from tfcluster.cli.down import collecting_errors
from tfcluster.errors import NodeLostError, SetupError, UsageError
from tfcluster.run_handle import Run
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths
from tfcluster.ui.formats import plural
from tfcluster.ui.terminal import Terminal

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@click.command("prune")
@click.option("--keep", type=click.IntRange(0), metavar="N",
              help="Keep the N newest runs (default: 20; 0 with --older-than).")  # fmt: skip
@click.option("--older-than", metavar="AGE",
              help="Delete only runs that ended longer ago than AGE: 30d, 12h.")  # fmt: skip
@click.option("-n", "--dry-run", is_flag=True, help="Only print what would be deleted.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of the selected runs.")
def command(
    keep: int | None, older_than: str | None, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete the folders of old runs; live runs are never deleted."""
    terminal = Terminal()
    if keep is None:
        keep = 0 if older_than else 20
    age_s = 0.0 if older_than is None else parse_age(older_than)
    selected = _select(keep, age_s)
    if not selected:
        terminal.say("nothing to delete")
    if selected and not yes and not dry_run:
        terminal.say("\n".join(paths.run_id for paths in selected))
        click.confirm(f"Delete {plural(len(selected), 'run')}?", abort=True, err=True)
    errors: list[SetupError] = []
    for paths in selected:
        with collecting_errors(errors):
            if not dry_run:
                Run(paths).delete(say=terminal.say_wrapped)
            terminal.say(f"{'would delete' if dry_run else 'deleted'} {paths.run_id}")
    if as_json:
        terminal.emit_json([paths.run_id for paths in selected])
    NodeLostError.raise_all(errors)


def _select(keep: int, age_s: float) -> list[RunPaths]:
    """Return ended or damaged runs, older than `age_s` seconds, not among the `keep` newest."""
    survey, before = job_watch.list_runs(), time.time() - age_s
    ended = [(s.started_at, s.ended_at, paths) for paths, s in survey.runs if s.status.is_final]
    damaged = (run for run in survey.damaged if not run.is_foreign and _is_dead(run.paths))
    ended += [(run.changed_at, None, run.paths) for run in damaged]
    ended.sort(key=lambda run: run[0])
    old = ended[: max(0, len(ended) - keep)]
    return [paths for started_at, ended_at, paths in old if (ended_at or started_at) <= before]


def _is_dead(damaged: RunPaths) -> bool:
    """Return whether a run without a readable state has neither coordinator nor task alive."""
    from tfcluster.coordinator.cleanup import find  # imports psutil, which is slow

    return not registry.is_answered(damaged) and not any(find(damaged.run_id))


def parse_age(text: str) -> float:
    """Return an age in seconds (``30d`` → 2592000.0); raise UsageError if `text` is not an age."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if match is None:
        raise UsageError(
            f"--older-than: {text!r} is not an age",
            fix="write a number and one of s, m, h, d, w: --older-than 30d",
        )
    return float(match[1]) * UNITS_S[match[2]]
