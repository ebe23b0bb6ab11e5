"""`tfcluster prune`: delete old runs, after saying which."""

from __future__ import annotations

import re
import time

import click

from tfcluster.cli.down import collected
from tfcluster.cli.rm import remove
from tfcluster.errors import NodeLostError, SurroundingsError, UsageError
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths
from tfcluster.ui.formats import plural
from tfcluster.ui.terminal import Terminal

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@click.command("prune")
@click.option("--keep", type=click.IntRange(0), help="Keep this many of the newest (20).")
@click.option("--older-than", metavar="AGE", help="Only runs that ended longer ago: 30d, 12h.")
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="A JSON array of the runs chosen.")
def command(
    keep: int | None, older_than: str | None, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete the folders of old runs; live ones are never touched."""
    terminal = Terminal()
    if keep is None:
        keep = 0 if older_than else 20
    age_s = 0.0 if older_than is None else seconds(older_than)
    doomed = _choose(keep, age_s)
    if not doomed:
        terminal.say("nothing to delete")
    if doomed and not yes and not dry_run:
        terminal.say("\n".join(paths.run_id for paths in doomed))
        click.confirm(f"Delete {plural(len(doomed), 'run')}?", abort=True, err=True)
    errors: list[SurroundingsError] = []
    for paths in doomed:
        with collected(errors):
            if not dry_run:
                remove(paths, terminal)
            terminal.say(f"{'would delete' if dry_run else 'deleted'} {paths.run_id}")
    if as_json:
        terminal.emit_json([paths.run_id for paths in doomed])
    NodeLostError.raise_all(errors)


def _choose(keep: int, age_s: float) -> list[RunPaths]:
    """Runs that are over or damaged, older than `age_s` seconds, not among the `keep` newest."""
    survey, before = registry.list_runs(), time.time() - age_s
    over = [(s.started_at, s.ended_at, paths) for paths, s in survey.runs if s.status.is_final]
    over += [(one.changed_at, None, one.paths) for one in survey.damaged if _is_dead(one.paths)]
    over.sort(key=lambda run: run[0])
    chosen = over[: max(0, len(over) - keep)]
    return [paths for began, ended, paths in chosen if (ended or began) <= before]


def _is_dead(damaged: RunPaths) -> bool:
    """Whether neither a coordinator nor a task of a run without a readable state lives."""
    from tfcluster.coordinator.cleanup import find  # psutil: only where it is needed

    return not registry.is_answered(damaged) and not any(find(damaged.run_id))


def seconds(text: str) -> float:
    """``30d`` → 2592000.0; raises UsageError for anything that is no age."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if match is None:
        raise UsageError(
            f"--older-than: {text!r} is no age", fix="write a number and s, m, h, d or w: 30d"
        )
    return float(match[1]) * _UNITS_S[match[2]]
