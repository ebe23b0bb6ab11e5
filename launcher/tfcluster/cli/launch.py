"""Launches a planned spec in the foreground or the background, for `up`, `run` and `join`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from tfcluster.cli.launch_steps import (
    Options,
    conclude,
    finish,
    open_session,
    start_options_of,
    start_text,
)
from tfcluster.ui.terminal import Terminal

if TYPE_CHECKING:
    from tfcluster.discovery.planning import Planned

__all__ = ["Options", "launch", "preimport"]


def preimport() -> None:
    """Import the modules that a start needs, while the tasks' Python is being probed."""
    modules = (
        "coordinator.foreground",
        "backends.local.local_nodes",
        "ui.follow",
        "ui.plan_view",
        "cli.closing",
    )
    for module in modules:
        import_module(f"tfcluster.{module}")


def launch(planned: Planned, options: Options) -> int:
    """Run `planned`, in the foreground to its end, and return the command's exit code.

    Raises a TfclusterError for whatever prevents the start.
    """
    planned.require()
    start_options_of(planned, options)
    if options.warm:
        from tfcluster.backends.local.warm_start import keep_warm

        warm_plan = keep_warm(planned.plan, planned.spec.runtime.warm_s)
        planned = replace(planned, plan=warm_plan)
    if options.detach:
        from tfcluster.cli.detached import launch_detached, with_lease

        return launch_detached(with_lease(planned), options)
    return _launch_in_foreground(planned, options)


def _launch_in_foreground(planned: Planned, options: Options) -> int:
    from tfcluster.coordinator.foreground import signals_held_back
    from tfcluster.ui.follow import RunView

    terminal = Terminal()

    def announce(ports: Mapping[str, int]) -> None:
        view.say(start_text(planned, session.paths, ports, options, terminal))

    with signals_held_back():
        session = open_session(planned, options)
        view = RunView(
            session.paths, terminal, json_lines=options.as_json, collapse=options.collapse
        )
        view.start()
        outcome = session.run(announce=announce, start_options=start_options_of(planned, options))
    finish(view)
    state, paths = session.run_writer.state, session.paths
    return conclude(state, paths, outcome, terminal, unrecorded=session.unrecorded)
