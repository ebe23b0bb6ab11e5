"""`up -d` and `run -d`: start the coordinator in the background and wait until all tasks run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfcluster.cli.launch_steps import (
    Options,
    conclude,
    finish,
    open_session,
    start_options_of,
    start_text,
)
from tfcluster.coordinator import background
from tfcluster.coordinator.background import Background, Tell
from tfcluster.coordinator.cleanup import outliving
from tfcluster.coordinator.foreground import Session, signals_held_back
from tfcluster.discovery.planning import Planned
from tfcluster.errors import NodeLostError, TfclusterError
from tfcluster.rundir import registry
from tfcluster.rundir.events import Event
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.states import Status
from tfcluster.supervision.decisions import Outcome
from tfcluster.ui.follow import RunView
from tfcluster.ui.formats import format_duration
from tfcluster.ui.merged_logs import LogFilter
from tfcluster.ui.terminal import Terminal

LEASE_S = 3600.0
"""``supervision.lease_s`` of a background run on other machines, unless the spec sets it."""
_NO_LOG_LINES = LogFilter(last_attempt=-1)


def launch_detached(planned: Planned, options: Options) -> int:
    """Start the run in the background and return the command's exit code.

    Returns when all tasks are started, or at the end of the run if that comes first; stdout gets
    the run's id. Ctrl-C until then stops the run; closing the terminal never does.
    """
    with signals_held_back():
        run = background.start(lambda tell: _run_in_background(planned, options, tell))
        watch = _Watch(planned, options, run)
        with run.in_foreground():
            watch.wait_until_started()
        if run.was_signalled:
            with run.in_foreground():
                watch.wait_until_end()
        elif watch.is_started:
            # A Ctrl-C from now on comes too late: it would only hide that the run continues.
            return watch.hand_over()
    return watch.conclude()


def with_lease(planned: Planned) -> Planned:
    """Return `planned` with the lease of background runs where tasks run on other machines.

    The coordinator may be a laptop that goes to sleep, which must not end training elsewhere.
    """
    is_chosen = "lease_s" in planned.spec.supervision.model_fields_set
    if is_chosen or not outliving(planned.plan):
        return planned
    supervision = replace(planned.plan.supervision, lease_s=LEASE_S)
    return replace(planned, plan=replace(planned.plan, supervision=supervision))


class _Watch:
    """The command's side of a background run while it starts: its messages, view and outcome."""

    def __init__(self, planned: Planned, options: Options, run: Background) -> None:
        self._planned, self._options, self._run = planned, options, run
        self._messages = run.messages()
        self._terminal = Terminal()
        self._view: RunView | None = None
        self._paths: RunPaths | None = None
        self.is_started, self._unrecorded = False, ""
        self._outcome: Outcome | None = None

    def wait_until_started(self) -> None:
        for message in self._messages:
            self._handle(message)
            if self.is_started:
                break

    def wait_until_end(self) -> None:
        """Handle messages to the end of the run, after a signal was passed on to it."""
        for message in self._messages:
            self._handle(message)

    def conclude(self) -> int:
        """Show how the run ended and return its exit code."""
        if self._view is not None:
            finish(self._view)
        self._run.close()
        outcome = self._outcome
        if outcome is None or self._paths is None:
            raise NodeLostError(
                f"the coordinator (pid {self._run.identity.pid}) died before all tasks ran",
                fix="start the run again; tasks that were already started end by themselves",
            )
        if outcome.status is Status.SUCCEEDED:
            return self.hand_over()
        state = registry.load(self._paths)
        if not self.is_started:
            self._terminal.say_wrapped(
                f"{self._paths.run_id} ended before all of its tasks had started"
            )
        return conclude(state, self._paths, outcome, self._terminal, unrecorded=self._unrecorded)

    def hand_over(self) -> int:
        """Print the run's id and leave the run in the background; return exit code 0."""
        assert self._paths is not None
        if self._view is not None:
            finish(self._view)
        run = self._paths.run_id
        if self._options.as_json:
            self._terminal.emit_json({"run": run, "folder": str(self._paths.root)})
        else:
            self._terminal.out(run)
        short = run[-4:]
        self._terminal.say_wrapped(
            f"the run continues in the background: `tfcluster attach {short}` shows it,"
            f" `tfcluster down {short}` stops it"
        )
        if outliving(self._planned.plan):
            self._terminal.say_wrapped(self._format_lease_note())
        return 0

    def _format_lease_note(self) -> str:
        lease = format_duration(self._planned.plan.supervision.lease_s)
        return (
            f"its coordinator runs on this machine ({self._run.identity.host}): if this machine"
            f" sleeps or loses its network, the hosts keep training for {lease}"
            " (supervision.lease_s), then stop their tasks"
        )

    def _handle(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"folder": str(folder)}:
                self._paths = RunPaths(Path(folder))
                self._view = RunView(self._paths, self._terminal, log_filter=_NO_LOG_LINES)
                self._view.start()
            case {"ports": dict(ports)} if self._view is not None and self._paths is not None:
                self._view.say(
                    start_text(self._planned, self._paths, ports, self._options, self._terminal)
                )
            case {"started": True}:
                self.is_started = True
            case {"refused": dict(error)}:
                raise _error_from_json(error)
            case {"ended": dict(ended)}:
                failure = _error_from_json(ended["error"]) if ended["error"] else None
                self._outcome = Outcome(Status(ended["status"]), ended["exit_code"], failure)
                self._unrecorded = ended["unrecorded"]
            case {"fault": str(trace)}:
                raise TfclusterError(f"internal error (please report it):\n{trace.rstrip()}")


def _error_from_json(data: Mapping[str, Any]) -> TfclusterError:
    error = TfclusterError(data["message"], fix=data["cure"])
    error.exit_code = data["exit_code"]
    return error


def _error_to_json(error: TfclusterError) -> dict[str, Any]:
    return {"message": error.message, "cure": error.fix, "exit_code": error.exit_code}


def _run_in_background(planned: Planned, options: Options, tell: Tell) -> None:
    """Run the whole run in the new process, as the foreground does."""
    try:
        session = open_session(planned, options)
    except TfclusterError as error:
        tell({"refused": _error_to_json(error)})
        return
    with background.redirected_output(session.paths.coordinator_log):
        tell({"folder": str(session.paths.root)})
        session.run_writer.on_event = _StartNotice(session, tell)
        outcome = session.run(
            announce=lambda ports: tell({"ports": dict(ports)}),
            start_options=start_options_of(planned, options),
        )
        if outcome.error is not None:
            Terminal().say(f"tfcluster: {outcome.error}")
        ended = {
            "status": str(outcome.status),
            "exit_code": outcome.exit_code,
            "error": _error_to_json(outcome.error) if outcome.error else None,
            "unrecorded": session.unrecorded,
        }
        tell({"ended": ended})


class _StartNotice:
    """Reports once that all tasks run, after saving that state; an event listener."""

    def __init__(self, session: Session, tell: Tell) -> None:
        self._session, self._tell, self._is_sent = session, tell, False

    def __call__(self, event: Event) -> None:
        if not self._is_sent and self._session.run_writer.state.status is Status.RUNNING:
            self._is_sent = True
            self._session.run_writer.save()
            self._tell({"started": True})
