"""`up -d`, `run -d`: the coordinator in a process of its own, waited for until all tasks run."""

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
from tfcluster.rundir.events import Event, Status
from tfcluster.rundir.paths import RunPaths
from tfcluster.supervision.decisions import Outcome
from tfcluster.ui.follow import RunView
from tfcluster.ui.formats import format_duration
from tfcluster.ui.merged_logs import LogFilter
from tfcluster.ui.terminal import Terminal

LEASE_S = 3600.0
"""``supervision.lease_s`` of a run in the background on other machines, unless the spec has one."""
_NO_LINES = LogFilter(last_attempt=-1)


def launch_detached(planned: Planned, options: Options) -> int:
    """Returns when all tasks are started, or with the run if that ends before; stdout gets the
    run's id. Ctrl-C until then stops the run; the end of the terminal never does."""
    with signals_held_back():
        run = background.start(lambda tell: _host(planned, options, tell))
        watch = _Watch(planned, options, run)
        with run.in_foreground():
            watch.until_started()
        if run.was_signalled:
            with run.in_foreground():
                watch.until_the_end()
        elif watch.is_started:
            # A Ctrl-C from now on comes too late: it would only hide that the run goes on.
            return watch.hand_over()
    return watch.conclude()


def with_lease(planned: Planned) -> Planned:
    """The coordinator may be a laptop that sleeps: that is to end no training on other machines."""
    is_chosen = "lease_s" in planned.spec.supervision.model_fields_set
    if is_chosen or not outliving(planned.plan):
        return planned
    supervision = replace(planned.plan.supervision, lease_s=LEASE_S)
    return replace(planned, plan=replace(planned.plan, supervision=supervision))


class _Watch:
    """What the command shows and learns while the run starts."""

    def __init__(self, planned: Planned, options: Options, run: Background) -> None:
        self._planned, self._options, self._run = planned, options, run
        self._news = run.messages()
        self._terminal = Terminal()
        self._view: RunView | None = None
        self._paths: RunPaths | None = None
        self.is_started, self._unrecorded = False, ""
        self._outcome: Outcome | None = None

    def until_started(self) -> None:
        for news in self._news:
            self._hear(news)
            if self.is_started:
                break

    def until_the_end(self) -> None:
        """A signal had been passed on when it was started."""
        for news in self._news:
            self._hear(news)

    def conclude(self) -> int:
        """It is over."""
        if self._view is not None:
            finish(self._view)
        self._run.close()
        outcome = self._outcome
        if outcome is None or self._paths is None:
            raise NodeLostError(
                f"the coordinator (pid {self._run.identity.pid}) went away before all tasks ran",
                fix="what it had started ends by itself; start the run again",
            )
        if outcome.status is Status.SUCCEEDED:
            return self.hand_over()
        state = registry.load(self._paths)
        if not self.is_started:
            self._terminal.tell(f"{self._paths.run_id} ended before all of its tasks were started")
        return conclude(state, self._paths, outcome, self._terminal, unrecorded=self._unrecorded)

    def hand_over(self) -> int:
        """It is started, and goes on without this command."""
        assert self._paths is not None
        if self._view is not None:
            finish(self._view)
        run = self._paths.run_id
        if self._options.as_json:
            self._terminal.emit_json({"run": run, "folder": str(self._paths.root)})
        else:
            self._terminal.out(run)
        short = run[-4:]
        self._terminal.tell(
            f"it goes on in the background: `tfcluster attach {short}` shows it,"
            f" `tfcluster down {short}` ends it"
        )
        if outliving(self._planned.plan):
            self._terminal.tell(self._where_from())
        return 0

    def _where_from(self) -> str:
        lease = format_duration(self._planned.plan.supervision.lease_s)
        return (
            f"it is coordinated from this machine ({self._run.identity.host}): should that sleep"
            f" or be cut off, the hosts train on for {lease} (supervision.lease_s), then end"
            " their tasks"
        )

    def _hear(self, news: Mapping[str, Any]) -> None:
        match news:
            case {"folder": str(folder)}:
                self._paths = RunPaths(Path(folder))
                self._view = RunView(self._paths, self._terminal, wanted=_NO_LINES)
                self._view.start()
            case {"ports": dict(ports)} if self._view is not None and self._paths is not None:
                self._view.say(
                    start_text(self._planned, self._paths, ports, self._options, self._terminal)
                )
            case {"started": True}:
                self.is_started = True
            case {"refused": dict(error)}:
                raise _error(error)
            case {"ended": dict(ended)}:
                met = _error(ended["error"]) if ended["error"] else None
                self._outcome = Outcome(Status(ended["status"]), ended["exit_code"], met)
                self._unrecorded = ended["unrecorded"]
            case {"fault": str(trace)}:
                raise TfclusterError(
                    f"a fault in tfcluster:\n{trace.rstrip()}", fix="please report it"
                )


def _error(facts: Mapping[str, Any]) -> TfclusterError:
    error = TfclusterError(facts["message"], fix=facts["cure"])
    error.exit_code = facts["exit_code"]
    return error


def _outcome_facts(outcome: Outcome) -> dict[str, Any]:
    error = _facts(outcome.error) if outcome.error else None
    return {"status": str(outcome.status), "exit_code": outcome.exit_code, "error": error}


def _facts(error: TfclusterError) -> dict[str, Any]:
    return {"message": error.message, "cure": error.fix, "exit_code": error.exit_code}


def _host(planned: Planned, options: Options, tell: Tell) -> None:
    """In the new process: the whole run, as in the foreground."""
    try:
        session = open_session(planned, options)
    except TfclusterError as error:
        tell({"refused": _facts(error)})
        return
    with background.redirected_output(session.paths.coordinator_log):
        tell({"folder": str(session.paths.root)})
        session.journal.heard = _Start(session, tell)
        outcome = session.run(
            announce=lambda ports: tell({"ports": dict(ports)}),
            start_options=start_options_of(planned, options),
        )
        if outcome.error is not None:
            Terminal().say(f"tfcluster: {outcome.error}")
        tell({"ended": _outcome_facts(outcome) | {"unrecorded": session.unrecorded}})


class _Start:
    """Tells once that all tasks are started, when that can be read in the run's folder too."""

    def __init__(self, session: Session, tell: Tell) -> None:
        self._session, self._tell, self._is_told = session, tell, False

    def __call__(self, event: Event) -> None:
        if not self._is_told and self._session.journal.state.status is Status.RUNNING:
            self._is_told = True
            self._session.journal.save()
            self._tell({"started": True})
