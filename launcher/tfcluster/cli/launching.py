"""What `up` and `run` share: from a planned spec to the exit code, with a view beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfcluster.errors import TfclusterError
from tfcluster.run.paths import home
from tfcluster.ui.terminal import Terminal

if TYPE_CHECKING:
    from tfcluster.run.ending import Outcome
    from tfcluster.run.planning import Planned
    from tfcluster.run.session import Session
    from tfcluster.ui.follow import RunView


@dataclass(frozen=True, slots=True)
class Options:
    """How a run is shown and what is left out of it."""

    as_json: bool = False
    collapse: bool = False
    gathers: bool = True
    prepares: bool = True


def launch(planned: Planned, options: Options) -> int:
    """Run it in the foreground to its end; returns the command's exit code.

    Raises what stands in the way before the first task starts.
    """
    from tfcluster.run.session import Session, signals_held_back
    from tfcluster.ui.follow import RunView

    plan, terminal = planned.require(), Terminal()
    spec = planned.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def announce(ports: Mapping[str, int]) -> None:
        from tfcluster.ui.panels import start_panel
        from tfcluster.ui.render import render

        view.say(render(start_panel(plan, session.paths, ports), terminal))

    with signals_held_back():
        session = Session(plan, spec, home_dir=home())
        view = RunView(
            session.paths, terminal, json_lines=options.as_json, collapse=options.collapse
        )
        view.start()
        outcome = session.run(announce=announce, gathers=options.gathers, prepares=options.prepares)
    _finish(view)
    return _conclude(session, outcome, terminal)


def _finish(view: RunView) -> None:
    """Show what is left; Ctrl-C leaves the rest to ``tfcluster logs``."""
    try:
        while not view.finish(0.5):
            pass
    except KeyboardInterrupt:
        return


def _conclude(session: Session, outcome: Outcome, terminal: Terminal) -> int:
    from tfcluster.checkpoints.loading import load_hint
    from tfcluster.checkpoints.store import open_for_reading
    from tfcluster.run.registry import bytes_of
    from tfcluster.ui.panels import closing_panel
    from tfcluster.ui.render import show

    state, paths = session.journal.state, session.paths
    if state.attempt or outcome.error is None:
        held = open_for_reading(paths.checkpoints)
        hint = load_hint(held[-1]) if held else ""
        _show_root_cause(session, terminal)
        size = bytes_of(home())
        show(closing_panel(state, paths, load_hint=hint, home_bytes=size), terminal)
    if not session.is_recorded:
        terminal.say(f"warning: the disk is full, {paths.root} does not tell how the run ended")
    if isinstance(outcome.error, TfclusterError):
        raise outcome.error
    return outcome.exit_code


def _show_root_cause(session: Session, terminal: Terminal) -> None:
    from tfcluster.ui.panels import root_cause_panel
    from tfcluster.ui.render import show
    from tfcluster.ui.source import last_lines

    state, paths = session.journal.state, session.paths
    if state.diagnosis:
        log = session.journal.task(state.diagnosis["root_cause"]["task"]).log
        lines = last_lines(paths.root / log) if log else ()
        if panel := root_cause_panel(state, paths, lines):
            show(panel, terminal)
