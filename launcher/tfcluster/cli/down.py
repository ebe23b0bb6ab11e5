"""`tfcluster down`: stop a run from any terminal, or clean up after one that is lost."""

from __future__ import annotations

import time

import click

from tfcluster.agent.error_words import words_of
from tfcluster.backends import warm as warm_agents
from tfcluster.errors import NodeLostError, UnknownRunError, UsageError
from tfcluster.run import contained, control, registry
from tfcluster.run.paths import RunPaths, runtime_dir
from tfcluster.run.snapshot import RunSnapshot
from tfcluster.ui.formats import plural
from tfcluster.ui.terminal import Terminal

_DOCKER_S = 20.0
LISTENS_WITHIN_S = 2.0
"""A coordinator that has just begun does not listen yet; one that is all but over, no longer."""


@click.command("down")
@click.argument("run", required=False)
@click.option("--now", is_flag=True, help="Kill at once, without a grace period.")
@click.option("--all", "everything", is_flag=True, help="Stop every live run.")
@click.option("--warm", is_flag=True, help="End what `up --warm` has kept; no run but with --all.")
@click.option("--json", "as_json", is_flag=True, help="A JSON array of the runs stopped.")
def command(run: str | None, now: bool, everything: bool, warm: bool, as_json: bool) -> None:
    """Stop RUN (default: the only live one) and wait until it has ended.

    Of a lost run, whose coordinator was killed, it ends and removes what is left on this host.
    """
    terminal = Terminal()
    if warm:
        _end_warm(run, terminal, as_json=as_json and not everything)
        if not everything:
            return
    if everything:
        known = registry.runs()
        doomed = [paths for paths, state in known if registry.is_open(state)]
    else:
        doomed = _named(run, terminal)
    for paths in doomed:
        _ask_to_stop(paths, now=now, terminal=terminal)
    ended = [_await_end(paths, terminal) for paths in doomed]
    for paths, state in zip(doomed, ended, strict=True):
        found = contained.look_for(state.run, paths, patience_s=_DOCKER_S)
        _clear_docker(found, terminal)
    if everything:
        _clear_docker(contained.look(patience_s=_DOCKER_S), terminal)
    if as_json:
        terminal.emit_json([{"run": state.run, "status": str(state.status)} for state in ended])


def _end_warm(run: str | None, terminal: Terminal, *, as_json: bool) -> None:
    if run is not None:
        raise UsageError("--warm ends what no run has any more, and takes no RUN")
    ended = warm_agents.end(runtime_dir())
    for pid in ended:
        terminal.tell(f"what was kept warm has ended (pid {pid})")
    if not ended:
        terminal.tell("nothing is kept warm")
    if as_json:
        terminal.emit_json([])


def _named(run: str | None, terminal: Terminal) -> list[RunPaths]:
    """The run that is meant; of one whose folder was removed all there may be is in docker."""
    try:
        return [registry.resolve(run, live_only=True)]
    except UnknownRunError:
        found = contained.look_for(run, patience_s=_DOCKER_S) if run else contained.Found()
        if not found.leftovers:
            raise
        _clear_docker(found, terminal)
        return []


def _clear_docker(found: contained.Found, terminal: Terminal) -> None:
    """Raises NodeLostError where docker does not answer, or keeps something."""
    for left in found.leftovers:
        if said := contained.remove(left):
            raise NodeLostError(f"docker does not remove {', '.join(left.names)}: {said}")
        terminal.tell(f"removed from docker: {', '.join(left.names)}")
    if found.silent:
        raise NodeLostError(
            f"what a run may have left there is not removed: {'; '.join(found.silent)}",
            cure="type it again once docker answers",
        )


def _ask_to_stop(paths: RunPaths, *, now: bool, terminal: Terminal) -> None:
    """Raises NodeLostError when a live coordinator does not answer."""
    until = time.monotonic() + LISTENS_WITHIN_S
    while not (state := registry.load(paths)).status.is_final:
        why = "tfcluster down --now" if now else "tfcluster down"
        try:
            socket = registry.control_socket(paths, state)
            control.ask(socket, {"op": "stop", "why": why, "now": now})
            terminal.say(f"stopping {state.run}")
            return
        except (OSError, ValueError) as error:
            if registry.is_elsewhere(state):
                raise NodeLostError(
                    f"{state.run} is coordinated on {state.host}",
                    cure=f"type there: tfcluster down {state.run}",
                ) from error
            if time.monotonic() > until:
                raise NodeLostError(
                    f"the coordinator of {state.run} (pid {state.pid}) does not answer:"
                    f" {words_of(error)}",
                    cure=f"kill it: kill {state.pid}; its agent then ends the tasks",
                ) from error
        time.sleep(0.05)


def _await_end(paths: RunPaths, terminal: Terminal) -> RunSnapshot:
    while not (state := registry.load(paths)).status.is_final:
        time.sleep(0.05)
    if registry.is_open(state):
        terminal.say(f"{state.run} is lost: its coordinator is gone")
        _clean_up(paths, terminal)
    else:
        terminal.say(f"{state.run} is {state.status}")
    return state


def _clean_up(paths: RunPaths, terminal: Terminal) -> None:
    from tfcluster.run.lost import clean_up  # psutil: only where it is needed

    found = clean_up(paths)
    if found.processes:
        count = plural(len(found.processes), "process", "processes")
        terminal.tell(f"ended {count} it had left: {', '.join(map(str, found.processes))}")
    if found.files:
        terminal.tell(f"removed {', '.join(map(str, found.files))}")
    if not found.processes and not found.files:
        terminal.say("nothing of it was left on this host")
    if found.survivors:
        names = ", ".join(map(str, found.survivors))
        raise NodeLostError(
            f"killed, and still there: {names}", cure="the kernel holds on to them: look at dmesg"
        )
