"""`tfcluster scale-to`, `down`, `wait`, `rm` and `prune`: change, end and delete runs."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Iterator, Sequence

import click

from tfcluster.api import get_run
from tfcluster.backends import job_watch, past_runs
from tfcluster.backends.local import warm_agents
from tfcluster.cli.completion import live_runs, run_names
from tfcluster.cli.options import read_age
from tfcluster.cli.scheduler_runs import SchedulerChoice, scheduler_options
from tfcluster.coordinator import cleanup
from tfcluster.errors import NodeLostError, SetupError, UnknownRunError, UsageError
from tfcluster.run_handle import Run
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths, runtime_dir
from tfcluster.rundir.snapshot import RunSnapshot, describe_failure, end_json
from tfcluster.rundir.states import Status
from tfcluster.ui import history
from tfcluster.ui.formats import plural
from tfcluster.ui.render import part_lines
from tfcluster.ui.terminal import Terminal

_ANSWER_S = 20.0


@click.command("scale-to")
@click.argument("run", shell_complete=live_runs)
@click.argument("workers", type=click.IntRange(min=1))
@click.option("--json", "as_json", is_flag=True, help="Print the answer as one JSON object.")
def scale_to(run: str, workers: int, as_json: bool) -> None:
    """Have RUN go on with WORKERS workers (its chief counts): at most those of its spec.

    All tasks save, stop, and start again from the newest checkpoint. The highest-numbered workers
    leave first; they come back when you ask for more. Return once the run has accepted.
    """
    terminal = Terminal()
    live = get_run(run, live_only=True)
    answer = live.scale_to(workers)
    if as_json:
        terminal.emit_json({"run": live.id, "workers": workers, "answer": answer})
    else:
        terminal.say_wrapped(f"{live.id}: {answer}")


@click.command("down")
@click.argument("run", required=False, shell_complete=live_runs)
@click.option("--now", is_flag=True, help="Kill at once, without a grace period.")
@click.option("--all", "everything", is_flag=True, help="Stop every live run.")
@click.option("--warm", is_flag=True, help="End the processes kept by `up --warm`, not a run.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of the stopped runs.")
@scheduler_options
def down(
    run: str | None, now: bool, everything: bool, warm: bool, as_json: bool, choice: SchedulerChoice
) -> None:
    """Stop RUN (default: the only live run) and wait until it has ended.

    If the run is lost (its coordinator was killed), end its leftover tasks on all hosts; with
    exit code 3, the message names the hosts where tasks may still run, and until when.
    """
    terminal = Terminal()
    excluded = {"--all": everything, "--warm": warm, "--json": as_json}
    if (scheduler := choice.scheduler(excluded)) is not None:
        scheduler.stop(run, terminal.say_wrapped, now=now)
        return
    if warm:
        _end_warm(run, terminal, as_json=as_json and not everything)
        if not everything:
            return
    if everything:
        targets = [paths for paths, state in registry.runs() if registry.is_open(state)]
    else:
        targets = _find_run(run, terminal)
    errors: list[SetupError] = []
    ended, kept = stop_and_clean_up(targets, terminal, errors, now=now)
    if everything:
        done = {state.run for state in ended}
        past = past_runs.find_leftovers(excluded=done | kept, patience_s=_ANSWER_S)
        errors += _remove_leftovers(past, terminal)
    if as_json:
        terminal.emit_json([{"run": state.run, "status": str(state.status)} for state in ended])
    NodeLostError.raise_all(errors)


def stop_and_clean_up(
    targets: Sequence[RunPaths], terminal: Terminal, errors: list[SetupError], *, now: bool = False
) -> tuple[list[RunSnapshot], set[str]]:
    """Stop runs and remove what they have left on their backends; add to `errors` what fails.

    Return their states, and the runs whose newest checkpoint stays where it is.
    """
    ended = _stop_all(targets, terminal, errors, now=now)
    kept = set[str]() if now else _gather_what_is_left(terminal, ended)
    for ended_run in {state.run for state in ended} - kept:
        past = past_runs.find_leftovers_of(ended_run, patience_s=_ANSWER_S)
        errors += _remove_leftovers(past, terminal)
    return ended, kept


def _gather_what_is_left(terminal: Terminal, ended: Sequence[RunSnapshot]) -> set[str]:
    """Gather what lost runs have left; return the runs whose newest checkpoint stays there."""
    kept = {state.run for _, state in registry.runs() if state.missed}
    for state in ended:
        is_lost, run = state.status is Status.LOST, Run(RunPaths.of(state.run))
        if is_lost and not run.gather_left(terminal.say_wrapped):
            kept.add(state.run)
    for name in sorted(kept & {state.run for state in ended}):
        terminal.say_wrapped(
            f"what {name} has left stays, with its newest checkpoint: `tfcluster checkpoints"
            f" {name}` gathers that, and `tfcluster down --now {name}` removes all"
        )
    return kept


def _stop_all(
    targets: Sequence[RunPaths], terminal: Terminal, errors: list[SetupError], *, now: bool
) -> list[RunSnapshot]:
    """Stop all runs, wait until they have ended, and return their states."""
    stopping, ended = [], []
    for paths in targets:
        with collecting_errors(errors):
            why = "tfcluster down --now" if now else "tfcluster down"
            was_live = Run(paths).ask_to_stop(why=why, now=now)
            stopping.append((paths, was_live))
            if was_live:
                terminal.say(f"stopping {paths.run_id}")
    for paths, was_live in stopping:
        with collecting_errors(errors):
            _await_end(paths, terminal, was_live=was_live)
        ended.append(registry.load(paths))
    return ended


@contextlib.contextmanager
def collecting_errors(errors: list[SetupError]) -> Iterator[None]:
    """Collect the error of one run, so that the others are still handled."""
    try:
        yield
    except SetupError as error:
        errors.append(error)


def _end_warm(run: str | None, terminal: Terminal, *, as_json: bool) -> None:
    if run is not None:
        raise UsageError(
            "--warm ends idle warm processes, which belong to no run", fix="leave out RUN or --warm"
        )
    ended = warm_agents.end(runtime_dir())
    for pid in ended:
        terminal.say_wrapped(f"ended a warm process (pid {pid})")
    if not ended:
        terminal.say_wrapped("there is no warm process")
    if as_json:
        terminal.emit_json([])


def _find_run(run: str | None, terminal: Terminal) -> list[RunPaths]:
    """Return the run called `run` as a list; empty if only its containers were left to remove."""
    try:
        return [registry.resolve(run, live_only=True)]
    except UnknownRunError:
        past = (
            past_runs.find_leftovers_of(run, patience_s=_ANSWER_S)
            if run
            else past_runs.LeftoverAnswers()
        )
        if not (past.leftovers or past.silent):
            raise
        NodeLostError.raise_all(list(_remove_leftovers(past, terminal)))
        return []


def _remove_leftovers(
    past: past_runs.LeftoverAnswers, terminal: Terminal
) -> Iterator[NodeLostError]:
    """Remove leftovers; yield an error for each backend that fails, or does not say what it has."""
    for left in past.leftovers:
        names = ", ".join(left.names)
        if problem := past_runs.remove_and_forget(left):
            yield NodeLostError(f"{left.place.backend} does not remove {names}: {problem}")
        else:
            terminal.say_wrapped(f"removed from {left.place.backend}: {names}")
    for silent in past.silent:
        when = f"run this again once {silent.place.backend} answers"
        yield NodeLostError(str(silent), fix=f"{when}; {silent.fix}")


def _await_end(paths: RunPaths, terminal: Terminal, *, was_live: bool) -> None:
    said = set[str]()
    while not (state := job_watch.load(paths)).status.is_final:
        for sentence in set(job_watch.silences()) - said:
            said.add(sentence)
            terminal.say_wrapped(sentence)
        time.sleep(0.05)
    if registry.is_open(state):
        terminal.say(f"{state.run} is lost: its coordinator died")
        cleanup.end_everywhere(paths, terminal.say_wrapped)
    elif state.status is Status.LOST:
        terminal.say(f"{state.run} is lost and was already cleaned up")
    elif was_live:
        terminal.say(f"{state.run} has ended: {state.status}")
    else:
        terminal.say(f"{state.run} had already ended: {state.status}")


@click.command("wait")
@click.argument("run", required=False, shell_complete=run_names)
@click.option("--json", "as_json", is_flag=True, help="Print the run's status as one JSON object.")
def wait(run: str | None, as_json: bool) -> int:
    """Wait until RUN ends; exit with its exit code.

    Without RUN: the only live run; if none is live, the latest run that was started with -d and
    has not been waited for.
    """
    terminal = Terminal()
    waited = Run(registry.resolve(run) if run is not None else registry.resolve_for_wait())
    state = waited.state()
    if run is None:
        has_ended = f"{state.run} has already ended: {state.status}"
        terminal.say(has_ended if state.status.is_final else f"waiting for {state.run}")
    waited.wait()
    state = waited.state()
    for part in (*history.format_reason(state), *history.format_cause(state)):
        terminal.say("\n".join(part_lines(part, terminal.width)))
    if as_json:
        terminal.emit_json(end_json(state))
    if state.exit_code is None:
        message, fix = describe_failure(state)
        raise NodeLostError(message, fix=fix)
    return state.exit_code


@click.command("rm")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=run_names)
@click.option("-y", "--yes", is_flag=True, help="Delete all runs of a name without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of the deleted runs.")
def rm(runs: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete the folders of RUNs: logs, checkpoints, outputs. Live runs are refused.

    If several runs have the name RUN, ask whether all are meant, or without a terminal refuse.
    A run whose folder is gone is forgotten, with what a cluster may have of it that cannot be
    asked.
    """
    terminal = Terminal()
    # Of these only a note about leftovers is left.
    gone = [
        run
        for run in dict.fromkeys(runs)
        if past_runs.is_noted(run) and not RunPaths.of(run).root.exists()
    ]
    named = (_find_named(run, terminal, yes=yes) for run in runs if run not in gone)
    selected = dict.fromkeys(run for found in named for run in found)
    for run in selected:
        run.require_ended()
    deleted, errors = list[str](), list[SetupError]()
    for name in gone:
        with collecting_errors(errors):
            _forget(name, terminal)
            deleted.append(name)
    for run in selected:
        with collecting_errors(errors):
            run.delete(say=terminal.say_wrapped)
            terminal.say(f"deleted {run.id}")
            deleted.append(run.id)
    if as_json:
        terminal.emit_json(deleted)
    NodeLostError.raise_all(errors)


def _find_named(name: str, terminal: Terminal, *, yes: bool) -> list[Run]:
    """Return the runs called `name`, if the user means all. Raises UsageError, click.Abort."""
    found = [Run(paths) for paths in registry.resolve_all(name)]
    if len(found) > 1 and not yes:
        for run in found:
            run.require_ended()
        rows = "\n".join(f"  {run.id}  {run.status}" for run in found)
        question = f"{len(found)} runs are called {name}:\n{rows}"
        fix = f"name one by its id, or delete all: tfcluster rm -y {shlex.quote(name)}"
        _confirm(question, f"Delete all {len(found)}?", terminal, fix=fix)
    return found


def _confirm(what: str, question: str, terminal: Terminal, *, fix: str) -> None:
    """Return once the user has agreed to `what`.

    Raises click.Abort if not, and UsageError without a terminal.
    """
    if not terminal.can_ask:
        raise UsageError(f"{what}\nthere is no terminal to ask on", fix=fix)
    terminal.say(what)
    click.confirm(question, abort=True, err=True)


def _forget(run: str, terminal: Terminal) -> None:
    """Forget a run without a folder. Raises NodeLostError if its backend has something of it."""
    for sentence in past_runs.forget_removed(run):
        terminal.say_wrapped(sentence)
    if past_runs.is_noted(run):
        fix = f"`tfcluster down {run}` removes it"
        raise NodeLostError(f"there is still something of {run}", fix=fix)
    terminal.say(f"forgot {run}")


@click.command("prune")
@click.option("--keep", type=click.IntRange(0), metavar="N",
              help="Keep the N newest runs (default: 20; 0 with --older-than).")  # fmt: skip
@click.option("--older-than", metavar="AGE",
              help="Delete only runs that ended longer ago than AGE: 30d, 12h.")  # fmt: skip
@click.option("-n", "--dry-run", is_flag=True, help="Only print what would be deleted.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask; needed without a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of the selected runs.")
def prune(
    keep: int | None, older_than: str | None, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete the folders of old runs; live runs are never deleted."""
    terminal = Terminal()
    if keep is None:
        keep = 0 if older_than else 20
    if (age_s := read_age("0s" if older_than is None else older_than)) is None:
        raise UsageError(
            f"--older-than: {older_than!r} is not an age",
            fix="write a number and one of s, m, h, d, w: --older-than 30d",
        )
    selected = _select(keep, age_s)
    if not selected:
        terminal.say("nothing to delete")
    if selected and not yes and not dry_run:
        number = plural(len(selected), "run")
        listed = "\n".join([f"{number}:", *(f"  {paths.run_id}" for paths in selected)])
        _confirm(listed, f"Delete {number}?", terminal, fix="`tfcluster prune -y` deletes them")
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
    ended: list[tuple[float, float | None, RunPaths]] = [
        (state.started_at, state.ended_at, paths)
        for paths, state in survey.runs
        if state.status.is_final and not registry.is_being_closed(paths, state)
    ]
    damaged = (run for run in survey.damaged if not run.is_foreign and _is_dead(run.paths))
    ended += [(run.changed_at, None, run.paths) for run in damaged]
    ended.sort(key=lambda run: run[0])
    old = ended[: max(0, len(ended) - keep)]
    return [paths for started_at, ended_at, paths in old if (ended_at or started_at) <= before]


def _is_dead(damaged: RunPaths) -> bool:
    """Return whether a run without a readable state has neither coordinator nor task alive."""
    return not registry.is_answered(damaged) and not any(cleanup.find(damaged.run_id))
