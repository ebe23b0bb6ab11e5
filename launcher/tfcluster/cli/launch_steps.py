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
    """The choices of one launch: how the run is shown, what it skips, what it resumes from."""

    as_json: bool = False
    collapse: bool = False
    detach: bool = False
    gathers: bool = True
    prepares: bool = True
    runs_preflight: bool = True
    warm: bool = False
    """Keep a process with the imported modules on this machine for the next run."""
    resume: Resume | None = None
    chaos: tuple[str, ...] = ()
    """Faults to inject (``--chaos``), as typed."""


def start_options_of(planned: Planned, options: Options) -> StartOptions:
    """Return the coordinator's options; raise UsageError for an invalid ``--chaos`` fault."""
    from tfcluster.coordinator.startup import StartOptions
    from tfcluster.rundir.chaos import parse

    return StartOptions(
        runs_preflight=options.runs_preflight,
        prepares=options.prepares,
        gathers=options.gathers,
        faults=parse(options.chaos, planned.plan),
    )


def open_session(planned: Planned, options: Options) -> Session:
    """Create the run folder and a coordinator that has not started yet."""
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
    """Return the start panel as text for this terminal."""
    from tfcluster.ui.plan_view import start_panel
    from tfcluster.ui.render import render

    resume = options.resume
    resumes = (resume.source.run_id, resume.newest.step, resume.checkpoint) if resume else None
    return render(start_panel(planned.plan, paths, ports, resumes=resumes), terminal)


def finish(view: RunView) -> None:
    """Show the remaining output; Ctrl-C skips it (``tfcluster logs`` has it)."""
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
    """Show how the run ended; return its exit code, or raise the error that it ended with.

    `unrecorded`: why the run folder is incomplete; empty if it is complete.
    """
    from tfcluster.cli.closing import show_end

    if state.attempt or outcome.error is None:
        show_end(state, paths, terminal, with_reason=False)
    if unrecorded:
        terminal.say(f"warning: {paths.root} does not record how the run ended: {unrecorded}")
    if isinstance(outcome.error, TfclusterError):
        raise _shorten_preflight_error(outcome.error, paths, terminal)
    return outcome.exit_code


def _shorten_preflight_error(
    error: TfclusterError, paths: RunPaths, terminal: Terminal
) -> TfclusterError:
    """Print the findings of a preflight error as a table; return the error without them."""
    from tfcluster.errors import PreflightError, SetupError
    from tfcluster.preflight.rules import read_report
    from tfcluster.ui.preflight_table import format_report

    # The class is lost on the way from a detached run; the message is not.
    is_preflight_error = error.message.startswith(PreflightError.HEAD)
    if not is_preflight_error or (report := read_report(paths)) is None:
        return error
    colours = terminal.has_colour(terminal.stderr)
    terminal.say(format_report(report, width=terminal.stderr.width(), colours=colours))
    return SetupError(PreflightError.HEAD, fix="check again: tfcluster doctor SPEC")
