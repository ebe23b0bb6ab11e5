"""`tfcluster down`: stop a run from any terminal, or clean up after one that is lost."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import click

from tfcluster.agent.error_text import describe_error
from tfcluster.backends import warm_agents
from tfcluster.backends.docker import past_runs
from tfcluster.cli.completion import files
from tfcluster.errors import NodeLostError, SurroundingsError, UnknownRunError, UsageError
from tfcluster.rundir import control, registry
from tfcluster.rundir.paths import RunPaths, runtime_dir
from tfcluster.rundir.states import Status
from tfcluster.ui.formats import plural
from tfcluster.ui.terminal import Terminal

_DOCKER_S = 20.0
LISTENS_WITHIN_S = 2.0
"""A coordinator that has just begun does not listen yet; one that is all but over, no longer."""


@click.command("down")
@click.argument("run", required=False, shell_complete=files)
@click.option("--now", is_flag=True, help="Kill at once, without a grace period.")
@click.option("--all", "everything", is_flag=True, help="Stop every live run.")
@click.option("--warm", is_flag=True, help="End what `up --warm` has kept; no run but with --all.")
@click.option("--json", "as_json", is_flag=True, help="A JSON array of the runs stopped.")
def command(run: str | None, now: bool, everything: bool, warm: bool, as_json: bool) -> None:
    """Stop RUN (default: the only live one) and wait until it has ended.

    Of a lost run, whose coordinator was killed, it ends what is left on all hosts; exit 3 names
    those where something may still live, and until when.
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
    errors: list[SurroundingsError] = []
    asked, ended = [], []
    for paths in doomed:
        with collected(errors):
            asked.append((paths, _ask_to_stop(paths, now=now, terminal=terminal)))
    for paths, was_live in asked:
        with collected(errors):
            _await_end(paths, terminal, was_live=was_live)
        ended.append(registry.load(paths))
    found = [past_runs.find_leftovers_of(state.run, patience_s=_DOCKER_S) for state in ended]
    if everything:
        done = {state.run for state in ended}
        found.append(past_runs.find_leftovers(patience_s=_DOCKER_S, excluded=done))
    for one in found:
        errors += _clear_docker(one, terminal)
    if as_json:
        terminal.emit_json([{"run": state.run, "status": str(state.status)} for state in ended])
    NodeLostError.raise_all(errors)


@contextlib.contextmanager
def collected(errors: list[SurroundingsError]) -> Iterator[None]:
    """Keep what is wrong with one run, so that the others have their turn."""
    try:
        yield
    except SurroundingsError as error:
        errors.append(error)


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
        found = past_runs.find_leftovers_of(run, patience_s=_DOCKER_S) if run else past_runs.Found()
        if not (found.leftovers or found.silent):
            raise
        NodeLostError.raise_all(list(_clear_docker(found, terminal)))
        return []


def _clear_docker(found: past_runs.Found, terminal: Terminal) -> Iterator[NodeLostError]:
    """Remove what docker has; an error for each daemon that does not answer or keeps something."""
    for left in found.leftovers:
        names = ", ".join(left.names)
        if said := past_runs.remove_and_forget(left):
            yield NodeLostError(f"docker does not remove {names}: {said}")
        else:
            terminal.tell(f"removed from docker: {names}")
    for silent in found.silent:
        removed = [run for run in silent.runs if not RunPaths.of(run).root.exists()]
        for run in removed:
            past_runs.forget(run)
        if len(removed) == len(silent.runs):
            terminal.tell(str(silent))
        else:
            again = "type it again once docker answers"
            fix = f"{again}; `tfcluster rm {silent.runs[0]}` gives it up"
            yield NodeLostError(str(silent), fix=fix)


def _ask_to_stop(paths: RunPaths, *, now: bool, terminal: Terminal) -> bool:
    """Whether there was a live coordinator to ask; raises NodeLostError when it does not answer."""
    until = time.monotonic() + LISTENS_WITHIN_S
    while not (state := registry.load(paths)).status.is_final:
        why = "tfcluster down --now" if now else "tfcluster down"
        try:
            socket = registry.control_socket(paths, state)
            control.ask(socket, {"op": "stop", "why": why, "now": now})
            terminal.say(f"stopping {state.run}")
            return True
        except (OSError, ValueError) as error:
            if registry.is_elsewhere(state):
                raise NodeLostError(
                    f"{state.run} is coordinated on {state.host}",
                    fix=f"type there: tfcluster down {state.run}",
                ) from error
            if time.monotonic() > until:
                raise NodeLostError(
                    f"the coordinator of {state.run} (pid {state.pid}) does not answer:"
                    f" {describe_error(error)}",
                    fix=f"kill it: kill {state.pid}; its agent then ends the tasks",
                ) from error
        time.sleep(0.05)
    return False


def _await_end(paths: RunPaths, terminal: Terminal, *, was_live: bool) -> None:
    while not (state := registry.load(paths)).status.is_final:
        time.sleep(0.05)
    if registry.is_open(state):
        terminal.say(f"{state.run} is lost: its coordinator is gone")
        _clean_up(paths, terminal)
    elif state.status is Status.LOST:
        terminal.say(f"{state.run} is lost, and was cleaned up before")
    elif was_live:
        terminal.say(f"{state.run} has ended: {state.status}")
    else:
        terminal.say(f"{state.run} had already ended: {state.status}")


def _clean_up(paths: RunPaths, terminal: Terminal) -> None:
    from tfcluster.coordinator.cleanup import clean_up  # psutil: only where it is needed

    found = clean_up(paths)
    if found.processes:
        count = plural(len(found.processes), "process", "processes")
        terminal.tell(f"ended {count} it had left: {', '.join(map(str, found.processes))}")
    if found.files:
        terminal.tell(f"removed {', '.join(map(str, found.files))}")
    if not found.processes and not found.files:
        terminal.say("nothing of it was left on this host")
    end_on_hosts(paths, terminal)
    if found.survivors:
        names = ", ".join(map(str, found.survivors))
        raise NodeLostError(
            f"killed, and still there: {names}", fix="the kernel holds on to them: look at dmesg"
        )


def end_on_hosts(paths: RunPaths, terminal: Terminal) -> None:
    """End what a lost run has left on other machines, and say what that was. Raises NodeLostError
    where something may still live there."""
    from tfcluster.coordinator import cleanup

    troubles = []
    for one in cleanup.end(paths):
        if one.trouble:
            at = time.strftime("%H:%M:%S", time.localtime(one.until))
            troubles.append(f"{one.node}: what runs there may live until {at}: {one.trouble}")
        else:
            what = f"ended {', '.join(one.ended)}" if one.ended else "nothing lived there any more"
            terminal.tell(f"{one.node}: {what}")
        if one.folder is not None:
            terminal.tell(f"{one.node}: what was saved there stays in {one.folder}")
    if troubles:
        again = f"`tfcluster down {paths.run_id}` tries again"
        raise NodeLostError("\n".join(troubles), fix=again)
