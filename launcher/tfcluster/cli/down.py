"""`tfcluster down`: stop a run from any terminal."""

from __future__ import annotations

import time

import click

from tfcluster.errors import NodeLostError
from tfcluster.run import control, registry
from tfcluster.run.events import Status
from tfcluster.run.paths import RunPaths
from tfcluster.run.snapshot import RunSnapshot
from tfcluster.ui.terminal import Terminal

LISTENS_WITHIN_S = 2.0
"""A coordinator that has just begun does not listen yet; one that is all but over, no longer."""


@click.command("down")
@click.argument("run", required=False)
@click.option("--now", is_flag=True, help="Kill at once, without a grace period.")
@click.option("--all", "everything", is_flag=True, help="Stop every live run.")
@click.option("--json", "as_json", is_flag=True, help="A JSON array of the runs stopped.")
def command(run: str | None, now: bool, everything: bool, as_json: bool) -> None:
    """Stop RUN (default: the only live one) and wait until it has ended."""
    terminal = Terminal()
    if everything:
        doomed = [paths for paths, state in registry.runs() if not state.status.is_final]
    else:
        doomed = [registry.resolve(run, live_only=True)]
    for paths in doomed:
        _ask_to_stop(paths, now=now, terminal=terminal)
    ended = [_await_end(paths, terminal) for paths in doomed]
    if as_json:
        terminal.emit_json([{"run": state.run, "status": str(state.status)} for state in ended])


def _ask_to_stop(paths: RunPaths, *, now: bool, terminal: Terminal) -> None:
    """Raises NodeLostError when a live coordinator does not answer."""
    until = time.monotonic() + LISTENS_WITHIN_S
    while not (state := registry.load(paths)).status.is_final:
        why = "tfcluster down --now" if now else "tfcluster down"
        try:
            control.ask(paths.control_socket, {"op": "stop", "why": why, "now": now})
            terminal.say(f"stopping {state.run}")
            return
        except (OSError, ValueError) as error:
            if time.monotonic() > until:
                raise NodeLostError(
                    f"the coordinator of {state.run} (pid {state.pid}) does not answer: {error}",
                    cure=f"kill it: kill {state.pid}; its agent then ends the tasks",
                ) from error
        time.sleep(0.05)


def _await_end(paths: RunPaths, terminal: Terminal) -> RunSnapshot:
    while not (state := registry.load(paths)).status.is_final:
        time.sleep(0.05)
    lost = " (its coordinator is gone)" if state.status is Status.LOST else ""
    terminal.say(f"{state.run} is {state.status}{lost}")
    return state
