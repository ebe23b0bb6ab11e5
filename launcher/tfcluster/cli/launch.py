"""Launches a planned spec for `up`, `run` and `join`, and shows the run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from importlib import import_module
from socket import gethostname
from typing import TYPE_CHECKING

from tfcluster import api
from tfcluster.errors import PreflightError, SetupError, TfclusterError
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.states import Status
from tfcluster.ui.terminal import Terminal

if TYPE_CHECKING:
    from tfcluster.cli.options import Display
    from tfcluster.coordinator.starter import End, Launch
    from tfcluster.plans.plan import Plan
    from tfcluster.ui.follow import RunView


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


def launch(made: Launch, display: Display) -> int:
    """Run a launch, in the foreground to its end, and return the command's exit code.

    Raises a TfclusterError for whatever prevents the start.
    """
    shown = _ShownRun(made, display)
    end = api.launch(made, shown)
    if end is None:
        return 0
    if not end.state.status.is_final:  # the user has left a run whose coordinator is elsewhere
        return end.outcome.exit_code
    if made.options.detach and end.outcome.status is Status.SUCCEEDED:
        shown.left()
        return 0
    return shown.conclude(end)


class _ShownRun:
    """A run that is shown on the terminal; a watcher of `api.launch`."""

    def __init__(self, made: Launch, display: Display) -> None:
        self._launch, self._display, self._detaches = made, display, made.options.detach
        self._terminal = Terminal()
        self._paths: RunPaths
        self._view: RunView
        self._keys = contextlib.ExitStack()
        self._next_key: Callable[[], bytes] = bytes

    def opened(self, paths: RunPaths, plan: Plan) -> None:
        from tfcluster.rundir.tail import tail_offset
        from tfcluster.ui.follow import RunView
        from tfcluster.ui.merged_logs import LogFilter

        self._paths = paths
        log_filter, again = None, registry.load_recorded(paths).continued
        if self._detaches:
            log_filter = LogFilter(last_attempt=-1)
        elif again is not None:  # the former start of the job has shown the rest
            log_filter = LogFilter(first_attempt=again["attempt"])
        self._view = RunView(
            paths,
            self._terminal,
            json_lines=self._display.as_json and not self._detaches,
            log_filter=log_filter,
            collapse=self._display.collapse,
            native=self._display.native,
            events_offset=tail_offset(paths.events, 1) if again is not None else 0,
        )
        self._view.start()

    def announced(self, plan: Plan) -> None:
        from tfcluster.ui.plan_view import start_panel
        from tfcluster.ui.render import render

        resume = self._launch.resume
        resumes = (resume.source.run_id, resume.newest.step, resume.checkpoint) if resume else None
        panel = start_panel(plan, self._paths, resumes=resumes)
        self._view.say(render(panel, self._terminal))

    def left(self) -> None:
        """Print the id of a run that continues in the background."""
        self._finish()
        run, terminal = self._paths.run_id, self._terminal
        if not self._detaches:
            pass  # its id is above, and stdout belongs to the output of its tasks
        elif self._display.as_json:
            terminal.emit_json({"run": run, "folder": str(self._paths.root)})
        else:
            terminal.out(run)
        short = run[-4:]
        terminal.say_wrapped(
            f"the run continues in the background: `tfcluster attach {short}` shows it,"
            f" `tfcluster down {short}` stops it"
        )
        _say_lease(self._launch.plan, terminal)

    def ask(self, question: str) -> bool:
        """Show a question, or take it away (""); return False without a terminal."""
        if not (sys.stdin and sys.stdin.isatty() and self._terminal.stderr.is_tty):
            return False
        self._keys.close()
        if question:
            from tfcluster.ui.live.job_control import single_keys

            self._next_key = self._keys.enter_context(single_keys(0))
        self._view.ask(question)
        return True

    def choice(self) -> str | None:
        """Return what the key says that was typed since the question, if it says anything."""
        return {b"l": "leave", b"c": "cancel"}.get(self._next_key().lower())

    def said(self, sentence: str) -> None:
        self._view.say(sentence)

    def conclude(self, end: End) -> int:
        """Show how the run ended; return its exit code, or raise the error that it ended with."""
        from tfcluster.cli.closing import show_end

        self._finish()
        state, error, terminal = end.state, end.outcome.error, self._terminal
        if end.outcome.comes_back:
            terminal.say_wrapped("the run continues when its job runs again")
            return end.outcome.exit_code
        if self._detaches and any(task.started_at is None for task in state.tasks):
            terminal.say_wrapped(f"{state.run} ended before all of its tasks had started")
        if state.attempt or error is None:
            show_end(state, end.paths, terminal, with_reason=False)
        if end.unrecorded:
            folder = end.paths.root
            terminal.say(f"warning: {folder} does not record how the run ended: {end.unrecorded}")
        if error is not None:
            raise error if state.attempt else _show_findings(error, end.paths, terminal)
        return end.outcome.exit_code

    def _finish(self) -> None:
        """Show the remaining output; Ctrl-C skips it (``tfcluster logs`` has it)."""
        with contextlib.suppress(KeyboardInterrupt):
            while not self._view.finish(0.5):
                pass


def _say_lease(plan: Plan, terminal: Terminal) -> None:
    from tfcluster.coordinator.cleanup import outliving
    from tfcluster.ui.formats import format_duration

    if any(not node.capabilities.on_one_machine for node in outliving(plan)):
        terminal.say_wrapped(
            f"its coordinator runs on this machine ({gethostname()}): if this machine"
            " sleeps or loses its network, the hosts keep training for"
            f" {format_duration(plan.supervision.lease_s)}"
            " (supervision.lease_s), then stop their tasks"
        )


def _show_findings(error: TfclusterError, paths: RunPaths, terminal: Terminal) -> TfclusterError:
    """Print what the checks of the nodes have found as a table; return the error without that.

    If nothing that they found has kept the run from starting, return `error` as it is.
    """
    from tfcluster.preflight.rules import read_report
    from tfcluster.ui.preflight_table import format_report

    report = read_report(paths)
    if report is None or not report.fatal:
        return error
    colours = terminal.has_colour(terminal.stderr)
    terminal.say(format_report(report, width=terminal.stderr.width(), colours=colours))
    return SetupError(PreflightError.HEAD, fix="check again: tfcluster doctor SPEC")
