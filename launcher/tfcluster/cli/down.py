"""`tfcluster down`: stop a run from any terminal, or clean up after a lost run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

import click

from tfcluster.backends import job_watch, past_runs
from tfcluster.backends.local import warm_agents
from tfcluster.cli.completion import live_runs
from tfcluster.cli.elsewhere import scheduler_of, scheduler_options
from tfcluster.errors import NodeLostError, SetupError, UnknownRunError, UsageError
from tfcluster.run_handle import Run
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths, runtime_dir
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status
from tfcluster.ui.terminal import Terminal

_ANSWER_S = 20.0


@click.command("down")
@click.argument("run", required=False, shell_complete=live_runs)
@click.option("--now", is_flag=True, help="Kill at once, without a grace period.")
@click.option("--all", "everything", is_flag=True, help="Stop every live run.")
@click.option("--warm", is_flag=True, help="End the processes kept by `up --warm`, not a run.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of the stopped runs.")
@scheduler_options
def command(
    run: str | None,
    now: bool,
    everything: bool,
    warm: bool,
    as_json: bool,
    backend: str | None,
    context: str | None,
    namespace: str | None,
) -> None:
    """Stop RUN (default: the only live run) and wait until it has ended.

    If the run is lost (its coordinator was killed), end its leftover tasks on all hosts; with
    exit code 3, the message names the hosts where tasks may still run, and until when.
    """
    terminal = Terminal()
    others = {"all": everything, "warm": warm, "json": as_json}
    if (scheduler := scheduler_of(backend, context, namespace, **others)) is not None:
        if run is None:
            raise UsageError("--backend needs RUN", fix="`tfcluster ps --backend NAME` lists them")
        scheduler.stop(run, terminal.say_wrapped, now=now)
        return
    if warm:
        _end_warm(run, terminal, as_json=as_json and not everything)
        if not everything:
            return
    targets = [paths for paths, state in registry.runs() if registry.is_open(state)]
    targets = targets if everything else _find_run(run, terminal)
    errors: list[SetupError] = []
    ended = _stop_all(targets, terminal, errors, now=now)
    kept = set[str]() if now else _runs_with_files(terminal, ended)
    done = {state.run for state in ended}
    found = [past_runs.find_leftovers_of(run, patience_s=_ANSWER_S) for run in done - kept]
    if everything:
        found.append(past_runs.find_leftovers(excluded=done | kept, patience_s=_ANSWER_S))
    for leftovers in found:
        errors += _remove_leftovers(leftovers, terminal)
    if as_json:
        terminal.emit_json([{"run": state.run, "status": str(state.status)} for state in ended])
    NodeLostError.raise_all(errors)


def _runs_with_files(terminal: Terminal, ended: Sequence[RunSnapshot]) -> set[str]:
    """Return the runs whose newest checkpoint is only where their tasks ran: that stays.

    What lost runs have left is gathered first.
    """
    kept = {state.run for _, state in registry.runs() if state.missed}
    for state in ended:
        lost = state.status is Status.LOST and Run(RunPaths.of(state.run))
        if lost and not lost.gather_left(terminal.say_wrapped):
            kept.add(state.run)
    for run in sorted(kept & {state.run for state in ended}):
        terminal.say_wrapped(
            f"what {run} has left stays, with its newest checkpoint: `tfcluster checkpoints {run}`"
            f" gathers that, and `tfcluster down --now {run}` removes all"
        )
    return kept


def _stop_all(
    targets: Sequence[RunPaths], terminal: Terminal, errors: list[SetupError], *, now: bool
) -> list[RunSnapshot]:
    """Stop all runs, wait until they have ended, and return their states."""
    stopping, ended = [], []
    for paths in targets:
        with collecting_errors(errors):
            stopping.append((paths, _request_stop(paths, now=now, terminal=terminal)))
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
        found = past_runs.find_leftovers_of(run, patience_s=_ANSWER_S) if run else past_runs.Found()
        if not (found.leftovers or found.silent):
            raise
        NodeLostError.raise_all(list(_remove_leftovers(found, terminal)))
        return []


def _remove_leftovers(found: past_runs.Found, terminal: Terminal) -> Iterator[NodeLostError]:
    """Remove leftovers; yield an error for each backend that fails, or does not say what it has."""
    for left in found.leftovers:
        names = ", ".join(left.names)
        if problem := past_runs.remove_and_forget(left):
            yield NodeLostError(f"{left.place.backend} does not remove {names}: {problem}")
        else:
            terminal.say_wrapped(f"removed from {left.place.backend}: {names}")
    for silent in found.silent:
        when = f"run this again once {silent.place.backend} answers"
        yield NodeLostError(str(silent), fix=f"{when}; {silent.fix}")


def _request_stop(paths: RunPaths, *, now: bool, terminal: Terminal) -> bool:
    """Ask the coordinator to stop the run; return False if the run has already ended."""
    why = "tfcluster down --now" if now else "tfcluster down"
    if was_live := Run(paths).ask_to_stop(why=why, now=now):
        terminal.say(f"stopping {paths.run_id}")
    return was_live


def _await_end(paths: RunPaths, terminal: Terminal, *, was_live: bool) -> None:
    said = set[str]()
    while not (state := job_watch.load(paths)).status.is_final:
        for sentence in set(job_watch.silences()) - said:
            said.add(sentence)
            terminal.say_wrapped(sentence)
        time.sleep(0.05)
    if registry.is_open(state):
        terminal.say(f"{state.run} is lost: its coordinator died")
        from tfcluster.coordinator import cleanup  # imports psutil, which is slow

        cleanup.end_everywhere(paths, terminal.say_wrapped)
    elif state.status is Status.LOST:
        terminal.say(f"{state.run} is lost and was already cleaned up")
    elif was_live:
        terminal.say(f"{state.run} has ended: {state.status}")
    else:
        terminal.say(f"{state.run} had already ended: {state.status}")
