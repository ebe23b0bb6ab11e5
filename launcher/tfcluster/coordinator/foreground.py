"""A run in this process: `RunSession` makes the folder, runs the coordinator, handles signals."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

from tfcluster.backends import jobs
from tfcluster.coordinator import on_end, takeover
from tfcluster.coordinator.coordinator import Coordinator
from tfcluster.coordinator.gathering import NOTHING, RunGathering
from tfcluster.coordinator.launch import (
    END_ANNOUNCED,
    SIGNALS,
    End,
    Launch,
    Watcher,
    is_repeated,
    make_folder,
    open_folder,
    signals_held_back,
)
from tfcluster.coordinator.loop import RunLoop
from tfcluster.coordinator.metrics_file import MetricsFile
from tfcluster.coordinator.resume import Resume, seed
from tfcluster.coordinator.takeover import leave_if_replaced
from tfcluster.errors import JobEndedError, NoProgressError, SetupError, TfclusterError
from tfcluster.plans import secrets
from tfcluster.plans.plan import Plan
from tfcluster.plans.secrets import redact_error
from tfcluster.rundir import registry
from tfcluster.rundir.events import JobJoined, RunContinued
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status
from tfcluster.supervision.decisions import Outcome

VAIN_STARTS: Final = 3
"""The starts of a job in a row that may be ended without a newer checkpoint."""
Announce = Callable[[Plan], None]
"""A function that is called before the first start with the plan, now with every host and port."""


def _continuation(state: RunSnapshot, restarts: int, last_event_at: float) -> RunContinued:
    """Return the event of a run whose job has started again."""
    before = (state.continued or {}).get("ran_s", 0.0)
    began_at = last_event_at if state.began_at is None else state.began_at
    ran_s = round(before + max(0.0, last_event_at - began_at), 3)
    return RunContinued(restarts=restarts, attempt=state.attempt + 1, ran_s=ran_s)


def count_vain_starts(state: RunSnapshot, newest: str) -> int:
    """Return how many starts of the run's job in a row, the last one included, saved nothing newer.

    `newest`: what `RunGathering.mark_newest` returns now. A start that ends because a node is lost
    has another limit, `max_restarts`.
    """
    last = state.restarts[-1] if state.restarts else {}
    if last.get("attempt", 0) > state.attempt and last.get("counts") is not False:
        return state.vain_starts
    return state.vain_starts + 1 if newest and newest == state.newest_at_start else 0


def find_interrupted(plan: Plan, home_dir: Path) -> RunPaths | None:
    """Return the run of `plan` that an earlier start of this process's job has begun, if any.

    The user's own script starts it again each time when the scheduler starts the job again. The
    end of such a run was the job's, whatever was known about it then, unless the user ended it. A
    run of the job's present start is another one, which may be alive.
    """
    job = jobs.own(plan.nodes[0].backend)
    if job is None or not job.restarts:
        return None
    tasks = {str(task.id) for task in plan.tasks}
    for paths, state in reversed(registry.runs(home_dir)):
        allocation = state.allocation or {}
        if (allocation.get("backend"), allocation.get("id")) != (job.backend, job.id):
            continue
        if allocation["restarts"] >= job.restarts or paths.cancelled.exists():
            continue
        is_same = (state.spec, state.name) == (plan.spec_path, plan.name)
        is_same = is_same and {task.task for task in state.tasks} == tasks
        status = registry.load_recorded(paths).status
        if is_same and (status is Status.INTERRUPTED or not status.is_final):
            return paths
    return None


class RunSession:
    """One run in this process. Its folder exists once the session is made."""

    def __init__(self, launch: Launch, opened: RunPaths | None = None) -> None:
        """Make the run folder, or use that of a submitted run, which is `opened` again.

        Raises RunFolderError.
        """
        self._launch = launch
        self._job = jobs.own(launch.plan.nodes[0].backend)
        if opened is None:
            self.paths, state = make_folder(launch)
        else:
            self.paths, state = opened, open_folder(opened)
            last_event_at = opened.events.stat().st_mtime
        takeover.claim(self.paths)
        self._secrets = secrets.find_values(launch.plan)
        self.run_writer = RunWriter(state, self.paths, secrets=self._secrets)
        path = launch.options.metrics_file
        self._metrics_file = MetricsFile(Path(path), self.run_writer) if path is not None else None
        if self._job is None:
            return
        if opened is None:
            self.run_writer.record(
                JobJoined(backend=self._job.backend, id=self._job.id, restarts=self._job.restarts)
            )
        elif self._job.restarts:
            self.run_writer.record(_continuation(state, self._job.restarts, last_event_at))
            self.run_writer.save()  # what shows the run begins with its present start

    @functools.cached_property
    def _gathering(self) -> RunGathering:
        """Made once the folder has what `--resume` continues from, as its store is read then."""
        plan, options = self._launch.plan, self._launch.options
        return RunGathering(
            plan, self.paths, enabled=options.gathers, keeps_files=options.keeps_files
        )

    def run(
        self,
        announce: Announce,
        *,
        handles_signals: bool = True,
        beside: Callable[[Coordinator], AbstractContextManager[None]] | None = None,
    ) -> End:
        """Run to the end; SIGINT, SIGTERM and SIGHUP stop, a later one kills.

        To be called in `signals_held_back`, like the constructor, unless `handles_signals` is
        False, as outside the main thread. `beside` is entered in the coordinator's loop.
        """
        try:
            outcome = self._run_to_outcome(announce, handles_signals, beside)
            if not outcome.comes_back:
                plan = self._launch.plan
                on_end.tell(self.run_writer, plan, handles_signals=handles_signals)
        finally:
            unrecorded = self.run_writer.close()
        redact_error(outcome.error, self._secrets)
        return End(self.paths, self.run_writer.state, outcome, unrecorded)

    def _run_to_outcome(
        self,
        announce: Announce,
        handles_signals: bool,
        beside: Callable[[Coordinator], AbstractContextManager[None]] | None,
    ) -> Outcome:
        try:
            resume = self._launch.resume
            if resume is not None and self.run_writer.state.attempt == 0:
                seed(resume, self.paths.checkpoints)
                announce = partial(self._announce_resumed, resume, announce)
            self._require_progress()
            with asyncio.Runner(loop_factory=RunLoop) as runner:
                outcome = runner.run(self._run(announce, handles_signals, beside))
            return self._go_back(outcome) if outcome.comes_back else outcome
        except (SetupError, NoProgressError) as error:
            return self._fail(error)
        except Exception as fault:
            return self._note_internal_error(fault)
        finally:
            self._gathering.close()
            if self._metrics_file is not None:
                with contextlib.suppress(OSError):  # the run has warned
                    self._metrics_file.write()

    def _require_progress(self) -> None:
        """Raise NoProgressError if the last starts of the job have saved nothing."""
        if self._job is None:
            return
        state, newest = self.run_writer.state, self._gathering.mark_newest()
        if self._job.restarts:
            state.vain_starts = count_vain_starts(state, newest)
        state.newest_at_start = newest
        self.run_writer.mark_changed()
        if state.vain_starts >= VAIN_STARTS:
            raise self._no_progress(state.vain_starts, newest, "")

    def _no_progress(self, starts: int, newest: str, limit: str) -> NoProgressError:
        assert self._job is not None
        return NoProgressError(
            self._job.id,
            self.paths.run_id,
            starts=starts,
            limit=limit,
            has_saved=newest != NOTHING,
        )

    def _go_back(self, outcome: Outcome) -> Outcome:
        """Put the job back into the queue; return the outcome, another one if that fails.

        A job that was ended too often without a newer checkpoint does not go back. A script of the
        user's own would start another run if the scheduler did that by itself, so it does.
        """
        assert self._job is not None
        leave_if_replaced(self.paths)
        state, newest = self.run_writer.state, self._gathering.mark_newest()
        starts = count_vain_starts(state, newest)
        if starts >= VAIN_STARTS and state.job is not None:
            raise self._no_progress(starts, newest, outcome.limit)
        self.run_writer.save()
        try:
            self._job.scheduler.requeue(self._job.id)
        except SetupError as error:
            resume = f"`tfcluster up --resume {self.paths.run_id}`"
            return self._fail(
                JobEndedError(
                    f"job {self._job.id} was ended: {outcome.comes_back}; {error.message}",
                    fix=f"to continue from the newest gathered checkpoint: {resume}",
                ),
                Status.INTERRUPTED,
            )
        return outcome

    async def _run(
        self,
        announce: Announce,
        handles_signals: bool,
        beside: Callable[[Coordinator], AbstractContextManager[None]] | None,
    ) -> Outcome:
        coordinator = Coordinator(
            self._launch,
            self.run_writer,
            self._gathering,
            announce=announce,
            job=self._job,
            metrics_file=self._metrics_file,
        )
        with contextlib.ExitStack() as lasting:
            if handles_signals:
                lasting.enter_context(_handling_signals(coordinator))
            if beside is not None:
                lasting.enter_context(beside(coordinator))
            return await coordinator.run()

    def _announce_resumed(self, resume: Resume, announce: Announce, plan: Plan) -> None:
        for event in resume.events():
            self.run_writer.record(event)
        announce(plan)

    def _note_internal_error(self, fault: Exception) -> Outcome:
        first: BaseException = fault
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        error = TfclusterError(
            f"internal error: {type(first).__name__}: {first}",
            fix=f"please report it with {self.paths.fault}",
        )
        with contextlib.suppress(OSError):
            trace = "".join(traceback.format_exception(fault))
            self.paths.fault.write_text(secrets.redact(trace, self._secrets))
        return self._fail(error)

    def _fail(self, error: TfclusterError, status: Status = Status.FAILED) -> Outcome:
        outcome = Outcome(status, error.exit_code, error)
        self.run_writer.record(outcome.event())
        return outcome


def run_to_end(launch: Launch, watcher: Watcher) -> End:
    """Run in this process, whose signals stop the run."""
    with signals_held_back():
        session = RunSession(launch, find_interrupted(launch.plan, launch.home_dir))
        watcher.opened(session.paths, launch.plan)
        return session.run(watcher.announced)


def start_thread(launch: Launch, note: Callable[[RunPaths], None]) -> RunPaths:
    """Run in a new daemon thread of this process; return once the run folder exists.

    `note` is called first in that thread, so that no run is unknown if this is interrupted. Raises
    what `RunSession` raises.
    """
    opened: Future[RunPaths] = Future()

    def run() -> None:
        try:
            session = RunSession(launch)
            note(session.paths)
        except BaseException as error:
            opened.set_exception(error)
            return
        opened.set_result(session.paths)
        session.run(lambda plan: None, handles_signals=False)

    threading.Thread(target=run, name=f"tfcluster {launch.plan.name}", daemon=True).start()
    return opened.result()


def stop_by(coordinator: Coordinator, number: signal.Signals) -> None:
    """Stop the run as this signal asks, once for several that mean the same."""
    if not is_repeated(number):
        coordinator.stop(SIGNALS[number])


@contextlib.contextmanager
def _handling_signals(coordinator: Coordinator) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    handled: dict[signal.Signals, Callable[[], None]] = {
        number: partial(stop_by, coordinator, number) for number in SIGNALS
    }
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        del handled[signal.SIGHUP]  # in the background or under nohup: outlives its terminal
    # A scheduler sends it to all processes of a step, also to those of a run on other nodes.
    handled[END_ANNOUNCED] = lambda: None
    if coordinator.job is not None:
        for number in (signal.SIGTERM, END_ANNOUNCED):
            handled[number] = partial(coordinator.end_job, number)
    for number, handler in handled.items():
        loop.add_signal_handler(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, handled)
        for number in handled:
            loop.remove_signal_handler(number)
            # Other threads do not block it, and the outcome is not recorded yet.
            signal.signal(number, signal.SIG_IGN)
