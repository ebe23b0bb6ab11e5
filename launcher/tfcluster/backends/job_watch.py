"""Runs that have a job, as views see them: the run folder, corrected by what the scheduler says.

While a job is queued nobody writes into its run's folder, and no process proves that the run is
alive. So the scheduler is asked, once for all runs of a backend and at most every `INTERVAL_S`,
and its answer counts if it is newer than what the folder says. A job that is over without its
coordinator's last word is recorded as the end of the run by the first process that notices.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tfcluster.backends import jobs, past_runs
from tfcluster.backends.jobs import Following, JobEnd, JobPhase, JobState
from tfcluster.backends.past_runs import SilentError
from tfcluster.errors import NodeLostError, SetupError, TfclusterError, join_first
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import DamagedRunError, RunListing
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status

INTERVAL_S = 5.0
PATIENCE_S = 8.0
"""Seconds that a command which only shows something waits for an answer."""
_DECIDES_IN_S = 1.0
"""The time that a scheduler needs to say why a new job is queued."""
_SAME_ESTIMATE_S = 600.0
"""An estimate that moves by less is not said again."""
_EXIT_CODES = {Status.INTERRUPTED: 143, Status.TIMED_OUT: 4}
_DAY_S = 86400.0
_ENDED_ELSEWHERE = (
    "the scheduler has nothing of the run any more: the machine that has started it has fetched its"
    " files, and knows how it ended"
)
_REASON = re.compile(r"(slurmstepd|srun|/\S+): |[\w.]*(Error|Exception)\b")
"""The beginning of a line in which Slurm, a shell or Python says why it ends."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """The jobs of all runs, as a scheduler listed them."""

    asked_at: float
    """The time before the question (`time.monotonic`): what is older may be outdated."""
    cluster: str
    jobs: Mapping[str, JobState]
    """Run → its job; of all runs whose jobs the scheduler still knows."""


@dataclass(slots=True)
class _Scheduler:
    """The newest answer of a backend's scheduler; one thread at a time asks it."""

    backend: str
    cluster: str
    answer: _Answer | None = None
    silence: str = ""
    """The reason why it does not answer; empty if it does."""
    _due_at: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self) -> None:
        """Ask if that is due, and wait for the answer at most `PATIENCE_S`."""
        with self._lock:
            if not self.is_due():
                return
            scheduler, began = jobs.of_backend(self.backend), time.monotonic()
            assert scheduler is not None
            try:
                here = self.answer.cluster if self.answer else None
                here = here or scheduler.cluster(self.cluster, patience_s=PATIENCE_S)
                states = scheduler.look(here, patience_s=PATIENCE_S)
                self.answer, self.silence = _Answer(began, here, states), ""
            except SilentError as error:
                self.silence = f"{self.backend} {error.how}: {error}"
            except SetupError as error:
                self.silence = error.message
            self._due_at = time.monotonic() + INTERVAL_S

    def ask_soon(self) -> None:
        """Ask in another thread if that is due."""
        if self.is_due() and not self._lock.locked():
            threading.Thread(target=self.ask, name="scheduler", daemon=True).start()

    def is_due(self) -> bool:
        return time.monotonic() >= self._due_at

    def make_due(self, in_s: float) -> None:
        """Have the next question asked in `in_s`: the user has just changed something."""
        self._due_at = time.monotonic() + in_s


_schedulers: dict[tuple[str, str], _Scheduler] = {}
_followings: dict[RunPaths, Following | None] = {}
"""Run → what copies its files to this machine."""
_late: set[str] = set()
"""Runs whose folder here is behind that of their coordinator."""
_MAX_NAMED = 3
_files: dict[RunPaths, WatchedState] = {}


def forget() -> None:
    """Forget what was asked so far, as a forked process must: a thread may have held a lock."""
    for known in (_schedulers, _files, _followings, _late):
        known.clear()


os.register_at_fork(after_in_child=forget)


def _scheduler_of(snapshot: RunSnapshot) -> _Scheduler:
    assert snapshot.job is not None
    place = snapshot.job["backend"], snapshot.job.get("cluster", "")
    return _schedulers.setdefault(place, _Scheduler(*place))


def _follow(paths: RunPaths, snapshot: RunSnapshot) -> Following | None:
    """Have the files of a live run copied to this machine, if its job writes elsewhere."""
    if paths not in _followings:
        job, following = jobs.of_run(snapshot), None
        if job is not None:
            following = job.scheduler.follow(paths, job.id, cluster=job.cluster)
        _followings[paths] = following
    return _followings[paths]


def _is_judged(snapshot: RunSnapshot | None) -> bool:
    """Return whether the scheduler has a say about a run."""
    if snapshot is None or snapshot.status.is_final:
        return False
    return jobs.of_run(snapshot) is not None


class WatchedState(registry.StateFile):
    """A reader of ``state.json`` that knows what the scheduler says; it never waits for it."""

    def __init__(self, paths: RunPaths) -> None:
        super().__init__(paths)
        self._recorded: RunSnapshot | None = None
        self._read_at = 0.0
        self._judged: tuple[_Answer, RunSnapshot] | None = None
        self._news = _News()

    def read(self) -> RunSnapshot | None:
        """Return the newest readable state, or None if there has been none yet."""
        state = self.read_without_asking()
        if state is not None and _is_judged(self._recorded):
            _scheduler_of(state).ask_soon()
            _follow(self._paths, state)
        return state

    def read_without_asking(self) -> RunSnapshot | None:
        """Return what `read` does; the scheduler is not asked."""
        recorded = super().read()
        if recorded is not self._recorded:
            self._recorded, self._read_at, self._judged = recorded, time.monotonic(), None
        if recorded is None or not _is_judged(recorded):
            return recorded
        return self._judge(recorded, _scheduler_of(recorded).answer)

    def _judge(self, recorded: RunSnapshot, answer: _Answer | None) -> RunSnapshot:
        assert recorded.job is not None
        if answer is None or answer.asked_at < self._read_at:
            return recorded
        if recorded.job.get("cluster", "") != answer.cluster:
            return recorded
        if self._judged is None or self._judged[0] is not answer:
            state = answer.jobs.get(recorded.run, JobState(JobPhase.OVER))
            self._judged = answer, _correct(self._paths, recorded, state)
        return self._judged[1]

    def news(self) -> list[str]:
        """Return sentences for what the scheduler says now and did not say at the last call."""
        shown, recorded = self.read(), self._recorded
        if shown is None or recorded is None or recorded.job is None:
            return []
        scheduler, following = _scheduler_of(recorded), _followings.get(self._paths)
        answer = scheduler.answer if self._judged is not None else None
        needs_scheduler = following is not None or shown.status is Status.QUEUED
        return [
            *self._news.about(
                answer.jobs.get(recorded.run) if answer is not None else None,
                scheduler.silence if needs_scheduler else "",
                following.problem if following is not None else "",
                was_started=recorded.status is not Status.QUEUED,
            )
        ]


@dataclass(slots=True)
class _News:
    """The last sentences about a job, so that nothing is said twice."""

    _reason: str = ""
    _starts_at: float | None = None
    _silence: str = ""
    _problem: str = ""

    def about(
        self, state: JobState | None, silence: str, problem: str, *, was_started: bool
    ) -> Iterator[str]:
        """Yield what has not been said; `problem`: why files do not arrive."""
        if problem and problem != self._problem and not self._silence:
            yield f"the run's files do not arrive here: {problem}; tfcluster keeps trying"
        self._problem = problem
        if silence != self._silence:
            self._silence = silence
            if silence and not problem:
                yield f"{silence}; tfcluster keeps asking"
        if state is None:
            return
        if state.phase is not JobPhase.QUEUED:
            self._reason = ""
        elif state.reason and (state.reason != self._reason or self._has_moved(state.starts_at)):
            self._reason, self._starts_at = state.reason, state.starts_at
            again = " again" if was_started else ""
            yield f"queued{again}: {format_wait(state, time.time())}"

    def _has_moved(self, starts_at: float | None) -> bool:
        if starts_at is None or self._starts_at is None:
            return starts_at is not self._starts_at
        return abs(starts_at - self._starts_at) >= _SAME_ESTIMATE_S


def _correct(paths: RunPaths, recorded: RunSnapshot, state: JobState) -> RunSnapshot:
    """Return what the folder says, corrected by the state of the job."""
    if state.phase is JobPhase.OVER or state.end is not None:
        return _conclude(paths, recorded, state)
    if state.phase is JobPhase.QUEUED:
        reason = format_wait(state, time.time())
        queued = replace(recorded, status=Status.QUEUED, queue_reason=reason)
        return replace(queued, waits_for=f"nodes: {reason}")
    if state.phase is JobPhase.SUSPENDED:
        waits_for = "the scheduler, which has suspended its job"
        suspended = replace(recorded, status=Status.SUSPENDED, queue_reason=None)
        return replace(suspended, waits_for=waits_for)
    if recorded.status is Status.QUEUED and state.phase is JobPhase.RUNNING:
        waits_for = "its coordinator, which is starting"
        return replace(recorded, waits_for=waits_for, queue_reason=None)
    if _follow(paths, recorded) is None:
        return _correct_silent(paths, recorded, state)
    return recorded


def _correct_silent(paths: RunPaths, recorded: RunSnapshot, state: JobState) -> RunSnapshot:
    """Return the state of a run whose job runs; have the job start again if its node is lost."""
    shown = registry.correct_silent(paths, recorded)
    is_orphan = shown is not recorded and state.phase is JobPhase.RUNNING
    if is_orphan and (job := jobs.of_run(recorded)) is not None:
        with contextlib.suppress(SilentError, SetupError):
            job.scheduler.restart_orphaned(job.id, cluster=job.cluster)
    return shown


def format_wait(state: JobState, now: float) -> str:
    """Return ``Priority, starts about 14:05``; with the day if that is not within a day."""
    reason = state.reason or "not scheduled yet"
    if state.starts_at is None or not now <= state.starts_at <= now + jobs.FAR_S:
        return reason
    left_s = state.starts_at - now
    form = "%H:%M" if left_s < _DAY_S else "%A %H:%M" if left_s < 6 * _DAY_S else "%Y-%m-%d"
    return f"{reason}, starts about {time.strftime(form, time.localtime(state.starts_at))}"


def _conclude(paths: RunPaths, run: RunSnapshot, state: JobState) -> RunSnapshot:
    """Record the end of a run whose job is over or can never start, unless that has been done."""
    from tfcluster.rundir.events import RunFinished  # `ps` does not need them
    from tfcluster.rundir.run_writer import RunWriter

    job = jobs.of_run(run)
    assert job is not None
    try:
        end = state.end or job.scheduler.explain_end(
            job.id, cluster=job.cluster, patience_s=PATIENCE_S
        )
        if paths.is_copy and end is not state.end and end.exit_code is None:
            end = JobEnd(_ENDED_ELSEWHERE, status=end.status)
    except (SilentError, SetupError):
        return run
    try:
        with recording_alone(paths):
            run = registry.load(paths)
            if run.status.is_final:
                return run
            fix = end.fix
            if run.checkpoints:
                fix = f"go on from its newest checkpoint: `tfcluster up --resume {paths.run_id}`"
            was_at_work = run.attempt and run.status is not Status.QUEUED
            if end.exit_code is None and was_at_work and _gathers(paths):
                run.missed = end.reason  # its coordinator has gathered nothing more
            at = max(state.ended_at or time.time(), run.started_at) - run.clock_ahead_s
            writer = RunWriter(run, paths, clock=lambda: at)
            writer.record(
                RunFinished(
                    status=end.status,
                    exit_code=end.exit_code
                    if end.exit_code is not None
                    else _EXIT_CODES.get(end.status, NodeLostError.exit_code),
                    reason=_reason(end, paths),
                    hint=fix or None,
                )
            )
            writer.close()
    except (OSError, DamagedRunError):  # the folder was deleted
        ended = replace(run, status=end.status, reason=end.reason)
        return replace(ended, waits_for=None, queue_reason=None)
    if paths.is_copy:  # the machine that has started it removes it
        return run
    if state.end is not None:
        with contextlib.suppress(SilentError, SetupError):  # `ps` lists what is left of it
            job.scheduler.stop(job.id, cluster=job.cluster, now=True)
            past_runs.forget(paths.run_id)
    elif _followings.get(paths) is None:  # else the cluster may keep what was not copied
        past_runs.forget(paths.run_id)
    return run


@contextlib.contextmanager
def recording_alone(paths: RunPaths) -> Iterator[None]:
    """Keep other processes from recording the run's end; see its newest state."""
    with paths.events.open("rb+") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        os.listdir(paths.root)  # NFS: what was replaced on another machine is seen now
        yield


def _reason(end: JobEnd, paths: RunPaths) -> str | None:
    """Return why the run ended; the coordinator's own words if it has left them."""
    if end.exit_code is not None:
        return end.reason or None
    return f"{end.reason}{_last_words(paths)}"


def _last_words(paths: RunPaths) -> str:
    """Return why the job's script failed, else the last line that others wrote about it in the log.

    What a site's prolog or epilog prints is quoted only where there is no reason.
    """
    with contextlib.suppress(OSError):
        return f": {paths.script_failure.read_text(errors='replace').strip()[-300:]}"
    try:
        lines = paths.coordinator_log.read_text(errors="replace").split("\n")
    except OSError:
        return ""
    printed = [line.strip() for line in reversed(lines) if line.strip()]
    if (reason := next(filter(_REASON.match, printed), None)) is not None:
        return f": {reason[-300:]}"
    return f"; its log ends with: {printed[0][-300:]}" if printed else ""


def load(paths: RunPaths) -> RunSnapshot:
    """Read a run's state as `registry.load` does, and wait for what its scheduler says of it."""
    snapshot = registry.load(paths)
    return _judge_all([(paths, snapshot)]).get(paths, snapshot)


def list_runs(home_dir: Path | None = None) -> RunListing:
    """Read the states of all runs as `registry.list_runs` does, each scheduler asked once."""
    listing = registry.list_runs(home_dir)
    judged = _judge_all(listing.runs)
    listing.runs[:] = [(paths, judged.get(paths, snapshot)) for paths, snapshot in listing.runs]
    return listing


def _judge_all(runs: Sequence[tuple[RunPaths, RunSnapshot]]) -> dict[RunPaths, RunSnapshot]:
    """Return the states of the runs that schedulers have a say about."""
    files: dict[RunPaths, WatchedState] = {}
    followings = dict[RunPaths, Following]()
    schedulers: dict[tuple[str, str], _Scheduler] = {}
    for paths, snapshot in runs:
        if _is_judged(snapshot):
            file = files[paths] = _files.setdefault(paths, WatchedState(paths))
            file.read_without_asking()  # an answer counts only for what was read before it
            scheduler = _scheduler_of(snapshot)
            schedulers[scheduler.backend, scheduler.cluster] = scheduler
            if following := _follow(paths, snapshot):
                followings[paths] = following
    until = time.monotonic() + PATIENCE_S
    for paths, following in followings.items():
        is_current = following.await_news(until - time.monotonic())
        (_late.discard if is_current else _late.add)(paths.run_id)
    for scheduler in schedulers.values():
        scheduler.ask()
    states = ((paths, file.read_without_asking()) for paths, file in files.items())
    return {paths: state for paths, state in states if state is not None}


def silences() -> list[str]:
    """Return a sentence for each scheduler that did not answer, and each run that is behind."""
    silent = [scheduler.silence for scheduler in _schedulers.values() if scheduler.silence]
    late = join_first(sorted(_late), _MAX_NAMED)
    behind = f"what is shown of {late} may be old: the cluster has not sent the rest in time"
    return [*silent, *([behind] if _late else [])]


def submitted(snapshot: RunSnapshot) -> None:
    """Note that the run's job is new: its scheduler needs a moment to say why it is queued."""
    _scheduler_of(snapshot).make_due(_DECIDES_IN_S)


@contextlib.contextmanager
def connect_coordinator(paths: RunPaths) -> Iterator[socket.socket]:
    """Yield a connection to the control socket of the coordinator in a run's job.

    Raises SetupError if it cannot be reached, or if the block raises an OSError or a ValueError.
    """
    snapshot = registry.load(paths)
    job = jobs.of_run(snapshot)
    assert job is not None
    try:
        scheduler, cluster = job.scheduler, job.cluster
        with scheduler.connect_coordinator(paths, job.id, cluster=cluster) as connection:
            yield connection
    except SilentError as error:
        fix = "try again once the scheduler answers"
        raise NodeLostError(f"{snapshot.run} cannot be asked: {error}", fix=fix) from error


@contextlib.contextmanager
def _cancelling(paths: RunPaths) -> Iterator[None]:
    """Note that the run is cancelled before its coordinator gets the signal, unless that fails."""
    is_first = not paths.cancelled.exists()
    with contextlib.suppress(OSError):  # a full disk
        paths.cancelled.touch()
    try:
        yield
    except BaseException:
        if is_first:
            paths.cancelled.unlink(missing_ok=True)
        raise


def _gathers(paths: RunPaths) -> bool:
    """Return whether the run's checkpoints are to come into its folder, as far as that is known."""
    with contextlib.suppress(TfclusterError, OSError, ValueError):
        return registry.load_plan(paths).checkpoints.dir is None
    return True


def stop(paths: RunPaths, *, now: bool) -> None:
    """Have the run's job end. The second time, or `now`, it ends without time to save.

    While the run gathers its last files, the first time lets it, and the second time aborts that.

    It does not come back even if it is put into the queue again meanwhile. Raises SetupError if
    the scheduler refuses it or does not answer.
    """
    snapshot = registry.load(paths)
    job = jobs.of_run(snapshot)
    assert job is not None
    try:
        if (here := job.scheduler.cluster(job.cluster, patience_s=PATIENCE_S)) != job.cluster:
            raise NodeLostError(
                f"the job of {snapshot.run} is in the cluster {job.cluster}, this machine in"
                f" {here}",
                fix=f"on a login node of {job.cluster}: tfcluster down {snapshot.run}",
            )
        stops_tasks = snapshot.status is Status.STOPPING and snapshot.gathering is None
        with _cancelling(paths):
            job.scheduler.stop(job.id, cluster=job.cluster, now=now or stops_tasks)
    except SilentError as error:
        fix = "try again once the scheduler answers"
        raise NodeLostError(f"{snapshot.run} cannot be stopped: {error}", fix=fix) from error
    _scheduler_of(snapshot).make_due(0.0)
