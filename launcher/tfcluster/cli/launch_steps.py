"""The steps of a launch that the foreground and the background share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfcluster.errors import TfclusterError
from tfcluster.rundir.paths import home
from tfcluster.ui.terminal import Terminal

if TYPE_CHECKING:
    from tfcluster.coordinator.foreground import Session
    from tfcluster.coordinator.resume import Resume
    from tfcluster.coordinator.startup import StartOptions
    from tfcluster.discovery.planning import Planned
    from tfcluster.rundir.paths import RunPaths
    from tfcluster.rundir.snapshot import RunSnapshot
    from tfcluster.supervision.decisions import Outcome
    from tfcluster.ui.follow import RunView


@dataclass(frozen=True, slots=True)
class Options:
    """How a run is shown, what is left out of it, and what it begins with."""

    as_json: bool = False
    collapse: bool = False
    detach: bool = False
    gathers: bool = True
    prepares: bool = True
    runs_preflight: bool = True
    warm: bool = False
    """Keep what is imported on this machine for the next run."""
    resume: Resume | None = None
    chaos: tuple[str, ...] = ()
    """Faults to rehearse, as they were typed."""


def start_options_of(planned: Planned, options: Options) -> StartOptions:
    """Raises UsageError for a fault to rehearse that is none, or cannot be done."""
    from tfcluster.coordinator.startup import StartOptions
    from tfcluster.rundir.chaos import parse

    return StartOptions(
        runs_preflight=options.runs_preflight,
        prepares=options.prepares,
        gathers=options.gathers,
        faults=parse(options.chaos, planned.plan),
    )


def open_session(planned: Planned, options: Options) -> Session:
    """The run's folder, and the coordinator that has not begun yet."""
    from tfcluster.coordinator.foreground import Session

    return Session(
        planned.plan,
        planned.spec_to_keep(),
        home_dir=home(),
        spec_folder=planned.context.spec_dir,
        resume=options.resume,
        in_background=options.detach,
    )


def start_text(
    planned: Planned,
    paths: RunPaths,
    ports: Mapping[str, int],
    options: Options,
    terminal: Terminal,
) -> str:
    """The start panel."""
    from tfcluster.ui.render import render
    from tfcluster.ui.start import start_panel

    resume = options.resume
    resumes = (resume.source.run_id, resume.newest.step, resume.checkpoint) if resume else None
    return render(start_panel(planned.plan, paths, ports, resumes=resumes), terminal)


def finish(view: RunView) -> None:
    """Show what is left; Ctrl-C leaves the rest to ``tfcluster logs``."""
    try:
        while not view.finish(0.5):
            pass
    except KeyboardInterrupt:
        return


def conclude(
    state: RunSnapshot,
    paths: RunPaths,
    outcome: Outcome,
    terminal: Terminal,
    *,
    unrecorded: str = "",
) -> int:
    """Show how the run ended; returns its exit code, or raises the error that it ended with.

    `unrecorded`: why its folder does not tell all of it.
    """
    from tfcluster.cli.closing import show_end

    if state.attempt or outcome.error is None:
        show_end(state, paths, terminal, says_reason=False)
    if unrecorded:
        terminal.say(f"warning: {paths.root} does not tell how the run ended: {unrecorded}")
    if isinstance(outcome.error, TfclusterError):
        raise _shown(outcome.error, paths, terminal)
    return outcome.exit_code


def _shown(error: TfclusterError, paths: RunPaths, terminal: Terminal) -> TfclusterError:
    """`error`; what a look at the nodes has found stands in a table, and is not told twice."""
    from tfcluster.errors import PreflightError, SurroundingsError
    from tfcluster.preflight.rules import read_report
    from tfcluster.ui.preflight_table import table

    is_of_preflight = error.message.startswith(PreflightError.HEAD)  # also of a detached run
    if not is_of_preflight or (look := read_report(paths)) is None:
        return error
    colours = terminal.has_colour(terminal.stderr)
    terminal.say(table(look, width=terminal.stderr.width(), colours=colours))
    return SurroundingsError(PreflightError.HEAD, fix="`tfcluster doctor SPEC` looks again")
