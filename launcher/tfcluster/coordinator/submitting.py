"""Submitted runs, whose coordinator runs in a job of a scheduler: `submit`, then watch or leave."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tfcluster.backends import job_watch, jobs, past_runs
from tfcluster.backends.past_runs import SilentError
from tfcluster.coordinator.launch import (
    SIGNALS,
    End,
    Launch,
    Watcher,
    make_folder,
    signals_held_back,
)
from tfcluster.errors import NodeLostError, SetupError, TfclusterError
from tfcluster.nodes import code_sync
from tfcluster.rundir import registry, run_writer
from tfcluster.rundir.events import Hint, JobSubmitted, RunQueued, Warned
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status
from tfcluster.supervision.decisions import Outcome
from tfcluster.typed_json import to_json

if TYPE_CHECKING:
    from tfcluster.spec.sections import Runtime

_POLL_S = 0.1
_HANDOVER_S = 30.0
"""Seconds for which a job that has started waits for its submitter on another machine."""
_GIVES_WAY = 10
"""The niceness added to a process that watches a run: the tasks may be on the same machine."""
_QUESTION = "Ctrl-C: leave the run running (l), or cancel it (c, or Ctrl-C again)?"


def submit(launch: Launch) -> RunPaths:
    """Make the folder of a run and submit its job; raises SetupError.

    The folder is not kept if the scheduler does not take the job.
    """
    assert launch.runtime is not None
    backend = launch.plan.nodes[0].backend
    scheduler = jobs.of_backend(backend)
    assert scheduler is not None
    paths, state = make_folder(launch)
    writer = RunWriter(state, paths)
    try:
        submission = _fill_folder(launch, launch.runtime, paths)
        if launch.options.runs_preflight:
            outlook = scheduler.check(submission, thorough=False)
            if outlook.obstacles:
                from tfcluster.preflight.preflight_report import PreflightReport  # slow to import

                PreflightReport.of_job(backend, outlook).require()
        for warning in scheduler.warnings(submission):
            writer.record(Warned(message=warning))
        for hint in scheduler.hints(submission):
            writer.record(Hint(message=hint))
        for event in launch.resume.events() if launch.resume is not None else ():
            writer.record(event)
        cluster = scheduler.cluster(launch.runtime, patience_s=job_watch.PATIENCE_S)
        past_runs.note(paths.run_id, backend, cluster)
        writer.save()  # the job may start at once: what is written after that is `record_job`
        job = scheduler.submit(submission)
    except (TfclusterError, SilentError) as error:
        writer.close()
        registry.delete(paths)
        past_runs.forget(paths.run_id)
        if isinstance(error, SilentError):
            raise NodeLostError(str(error), fix="try again once the scheduler answers") from error
        raise
    writer.close(keeps_reserve=True)
    record_job(paths, JobSubmitted(backend=backend, id=job, cluster=cluster))
    job_watch.submitted(registry.load_recorded(paths))
    return paths


def _fill_folder(launch: Launch, runtime: Runtime, paths: RunPaths) -> jobs.Submission:
    """Write what the job needs into its run folder; return what is submitted."""
    in_job = replace(launch.options, detach=False)  # this process leaves, the job does not
    run_writer.require_json(paths.launch, to_json(in_job))
    if launch.resume is not None:
        from tfcluster.coordinator.resume import seed

        seed(launch.resume, paths.checkpoints)
    submission = jobs.submission_of(launch.plan, runtime, paths.root)
    code = functools.cache(functools.partial(code_sync.snapshot_of, launch.plan))
    return replace(submission, code=lambda: code().files, left_out=lambda: tuple(code().warnings()))


def record_job(paths: RunPaths, submitted: JobSubmitted) -> None:
    """Record the job of a run, as the submitter's last act or in the place of one that is gone.

    The time is that of the run's beginning: a coordinator that has a copy of the run folder writes
    the same bytes.
    """
    state = registry.load_recorded(paths)
    if state.job is not None:
        return
    at = state.started_at
    writer = RunWriter(state, paths, clock=lambda: at)
    writer.record(submitted)
    writer.record(RunQueued(reason=f"job {submitted.id}"))
    writer.close(keeps_reserve=True)


def take_over(paths: RunPaths) -> RunSnapshot:
    """Return the run's state in its job, which may start before the submitter has recorded it.

    Two processes must not write into the run folder at once. A submitter that was killed, or that
    has been stopped for `_HANDOVER_S`, is not waited for.
    """
    until = time.monotonic() + _HANDOVER_S
    while (state := registry.load_recorded(paths)).job is None:
        is_alive = registry.coordinator_of(state).is_alive()
        if is_alive is not False and time.monotonic() < until:
            time.sleep(_POLL_S)
        elif (state := registry.load_recorded(paths)).job is None:
            own = jobs.own(registry.load_plan(paths).nodes[0].backend)
            assert own is not None
            cluster = own.scheduler.cluster("", patience_s=job_watch.PATIENCE_S)
            submitted = JobSubmitted(backend=own.backend, id=own.id, cluster=cluster)
            record_job(paths, submitted)
    return state


def submit_and_watch(launch: Launch, watcher: Watcher) -> End | None:
    """Submit the run and watch it to its end; a launch in the background is left at once.

    The terminal's end leaves the run alone. Ctrl-C asks what to do where there is a terminal,
    and else cancels the run, like SIGTERM. If the user leaves the run, its state is not final.
    """
    with signals_held_back():
        paths = submit(launch)
        if not launch.options.detach:
            os.nice(_GIVES_WAY)  # threads that start from here on inherit it
        leaves = threading.Event()
        watcher.opened(paths, launch.plan, None if launch.options.detach else leaves.set)
        if launch.options.detach:
            watcher.left()
            return None
        with _signals() as came:
            return _Watch(launch, paths, watcher, came, leaves).run()


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Yield a list to which SIGINT, SIGTERM and SIGHUP are added as they come."""
    came = list[int]()
    handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, lambda number, frame: came.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
    try:
        yield came
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, handled)


@dataclass(slots=True)
class _Watch:
    """The watch of a submitted run by the process that has submitted it."""

    launch: Launch
    paths: RunPaths
    watcher: Watcher
    came: list[int]
    """The signals that have come and are not handled yet."""
    leaves: threading.Event = field(default_factory=threading.Event)
    """Set once the user leaves the run."""
    _is_asking: bool = False
    _is_announced: bool = False
    _cancelled_by: int | None = None
    _state_file: job_watch.WatchedState = field(init=False)

    def __post_init__(self) -> None:
        self._state_file = job_watch.WatchedState(self.paths)

    def run(self) -> End:
        while not self._state_file.is_over():
            self._announce()
            if self.leaves.is_set():
                return self._left(0)
            if self.came and self._obey(number := self.came.pop(0)):
                return self._left(SIGNALS[signal.Signals(number)].exit_code)
            if self._is_asking and (choice := self.watcher.choice()) is not None:
                self._is_asking = False
                if choice == "leave":
                    return self._left(SIGNALS[signal.SIGINT].exit_code)
                self._cancel(signal.SIGINT)
            time.sleep(_POLL_S)
        self._announce()
        return self._end(job_watch.load(self.paths))

    def _announce(self) -> None:
        """Announce the plan once all ports are known, or the tasks start without any."""
        state = self._state_file.read()
        if self._is_announced or state is None:
            return
        ports = [task.address.rpartition(":")[2] for task in state.tasks]
        has_ports = all(port not in ("", "0") for port in ports)
        if state.attempt or (has_ports and state.status is Status.STARTING):
            self._is_announced = True
            self.watcher.announced(registry.with_addresses(self.launch.plan, state))

    def _obey(self, number: int) -> bool:
        """React to a signal; return whether the run is left alone."""
        if number == signal.SIGHUP:
            return True
        is_first = not self._is_asking and self._cancelled_by is None
        if number == signal.SIGINT and is_first and self.watcher.ask(_QUESTION):
            self._is_asking = True
            return False
        self._is_asking = False
        self._cancel(number)
        return False

    def _cancel(self, number: int) -> None:
        self.watcher.ask("")
        try:
            gathers = registry.load(self.paths).gathering is not None
            job_watch.stop(self.paths, now=self._cancelled_by is not None and not gathers)
        except SetupError as error:
            self.watcher.said(str(error))
            return
        self._cancelled_by = self._cancelled_by or number
        self.watcher.said("cancelling the run; Ctrl-C again ends it at once")

    def _left(self, exit_code: int) -> End:
        self.watcher.ask("")
        self.watcher.left()
        state = registry.load(self.paths)
        return End(self.paths, state, Outcome(state.status, exit_code))

    def _end(self, state: RunSnapshot) -> End:
        self.watcher.ask("")
        error = TfclusterError(state.reason, fix=state.hint or "") if state.reason else None
        code = state.exit_code or 0
        if self._cancelled_by is not None and state.status is Status.INTERRUPTED:
            code, error = SIGNALS[signal.Signals(self._cancelled_by)].exit_code, None
        if error is not None:
            error.exit_code = code
        return End(self.paths, state, Outcome(state.status, code, error))
