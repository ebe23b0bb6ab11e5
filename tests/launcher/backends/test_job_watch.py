"""Runs with a job are what their folders say, corrected by the scheduler's answers.

The scheduler is a fake; tests/integration/slurm asks a real one.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from tests.integration.commandline import wait_for
from tests.launcher.conftest import plan_of

from tfcluster.backends import job_watch, jobs, past_runs
from tfcluster.backends.jobs import JobEnd, JobPhase, JobState
from tfcluster.backends.past_runs import SilentError
from tfcluster.errors import NodeLostError, SetupError
from tfcluster.rundir import events as ev
from tfcluster.rundir import heartbeat, registry, run_writer
from tfcluster.rundir.fold import first_state
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import ProcessIdentity, this_process
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status

NOON = time.mktime((2026, 9, 14, 12, 0, 0, 0, 0, -1))
GONE = ProcessIdentity(this_process().host, this_process().boot_id, 1 << 22, 1)


class Fake:
    """A scheduler with a job for each run that a test has submitted."""

    def __init__(self) -> None:
        self.states: dict[str, JobState] = {}
        self.end = JobEnd("job 7 was cancelled", status=Status.INTERRUPTED)
        self.error: Exception | None = None
        self.asked = 0
        self.stopped: list[tuple[str, bool]] = []
        self.following: Any = None
        self.orphaned: list[str] = []

    def cluster(self, of: object, *, patience_s: float) -> str:
        return "north"

    def look(self, cluster: str, *, patience_s: float) -> dict[str, JobState]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return dict(self.states)

    def explain_end(self, job: str, *, cluster: str, patience_s: float) -> JobEnd:
        return self.end

    def follow(self, paths: RunPaths, job: str, *, cluster: str) -> Any:
        return self.following

    def restart_orphaned(self, job: str, *, cluster: str) -> None:
        self.orphaned.append(job)

    def stop(self, job: str, *, cluster: str, now: bool) -> None:
        if self.error is not None:
            raise self.error
        self.stopped.append((job, now))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(jobs, "of_backend", lambda backend: made)
    return made


def submitted(home: Any, fake: Fake, *events: ev.Event, cluster: str = "north") -> RunPaths:
    """Make the folder of a run whose submitter is gone, and its job in the queue."""
    paths = run_writer.make_new(lambda: registry.new_run_id("demo", NOON), home)
    writer = RunWriter(first_state(plan_of(), paths, GONE, NOON), paths)
    writer.record(ev.JobSubmitted(backend="slurm", id="7", cluster=cluster))
    for event in events or (ev.RunQueued(reason="job 7"),):
        writer.record(event)
    writer.close()
    fake.states[paths.run_id] = JobState(JobPhase.QUEUED, "Priority")
    return paths


STARTED = (
    ev.NodeConnected(node="local", pid=10, guard_pid=11),
    ev.TaskStarted(task="worker:0", attempt=1, node="local", pid=20),
    ev.TaskStarted(task="worker:1", attempt=1, node="local", pid=21),
)


def test_a_run_in_a_queue_shows_the_reason_and_is_not_lost(home_dir: Any, fake: Fake) -> None:
    paths = submitted(home_dir, fake)
    fake.states[paths.run_id] = JobState(JobPhase.QUEUED, "Priority", starts_at=time.time() + 60)
    state = job_watch.load(paths)
    assert state.status is Status.QUEUED
    assert state.waits_for is not None
    assert state.waits_for.startswith("nodes: Priority, starts about ")
    assert registry.load(paths).status is Status.QUEUED


def test_a_job_that_is_queued_again_without_a_word_is_queued(home_dir: Any, fake: Fake) -> None:
    paths = submitted(home_dir, fake, *STARTED)
    assert registry.load(paths).status is Status.RUNNING
    assert job_watch.load(paths).status is Status.QUEUED
    file = job_watch.WatchedState(paths)
    file.read()
    job_watch._scheduler_of(registry.load(paths)).make_due(0.0)
    assert wait_for(file.news) == ["queued again: Priority"]


def test_a_job_that_runs_without_its_coordinator_is_not_running(home_dir: Any, fake: Fake) -> None:
    """The scheduler keeps it if it can go on with fewer nodes, also without its first one."""
    paths = submitted(home_dir, fake, *STARTED)
    fake.states[paths.run_id] = JobState(JobPhase.RUNNING)
    heartbeat.claim(paths, asdict(GONE))
    assert job_watch.load(paths).status is Status.RUNNING
    at = time.time() - 500
    os.utime(paths.heartbeat, (at, at))
    job_watch.forget()
    state = job_watch.load(paths)
    assert state.status is Status.STALLED
    assert "nothing is heard of its coordinator" in (state.stall or {})["what"]
    assert fake.orphaned == ["7"], "the scheduler is asked to start it again"
    fake.states[paths.run_id] = JobState(JobPhase.ENDING)
    job_watch.forget()
    assert job_watch.load(paths).status is Status.STALLED, "its last processes are being ended"
    assert fake.orphaned == ["7"]


def test_a_running_job_is_as_its_coordinator_says(home_dir: Any, fake: Fake) -> None:
    paths = submitted(home_dir, fake, *STARTED)
    fake.states[paths.run_id] = JobState(JobPhase.RUNNING)
    assert job_watch.load(paths) == registry.load(paths)
    queued = submitted(home_dir, fake)
    fake.states[queued.run_id] = JobState(JobPhase.RUNNING)
    job_watch._schedulers.clear()
    state = job_watch.load(queued)
    assert state.status is Status.QUEUED
    assert state.waits_for == "its coordinator, which is starting"
    fake.states[paths.run_id] = JobState(JobPhase.SUSPENDED)
    job_watch.forget()
    state = job_watch.load(paths)
    assert state.status is Status.SUSPENDED
    assert state.waits_for == "the scheduler, which has suspended its job"
    assert (registry.load_recorded(paths).status, fake.orphaned) == (Status.RUNNING, [])


def test_the_scheduler_is_asked_once_for_all_runs(
    home_dir: Any, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_watch, "INTERVAL_S", 600.0)  # however busy the machine is
    found = [submitted(home_dir, fake) for _ in range(3)]
    listed = job_watch.list_runs().runs
    assert [state.waits_for for _, state in listed] == ["nodes: Priority"] * 3
    fake.states = dict.fromkeys(fake.states, JobState(JobPhase.QUEUED, "Resources"))
    assert job_watch.load(found[0]).waits_for == "nodes: Priority", "asked a moment ago"
    assert fake.asked == 1


def test_runs_without_a_job_ask_nobody(make_run: Any, fake: Fake) -> None:
    make_run(status=Status.RUNNING)
    job_watch.list_runs()
    assert fake.asked == 0


def test_an_answer_does_not_count_for_what_was_written_after_it(
    home_dir: Any, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_watch, "INTERVAL_S", 600.0)
    paths = submitted(home_dir, fake)
    file = job_watch.WatchedState(paths)
    wait_for(lambda: (file.read() or state_of(paths)).waits_for == "nodes: Priority")
    state = state_of(paths)
    writer = RunWriter(state, paths)
    for event in (ev.NodesAllocated(hosts={}, addresses={}), *STARTED):
        writer.record(event)
    writer.close()
    found = file.read()
    assert found is not None
    assert found.status is Status.RUNNING, "the scheduler's answer is older"


def state_of(paths: RunPaths) -> RunSnapshot:
    return registry.load(paths)


def test_the_end_of_a_job_is_recorded_by_whoever_notices(home_dir: Any, fake: Fake) -> None:
    paths = submitted(home_dir, fake, *STARTED)
    past_runs.note(paths.run_id, "slurm", "north")
    log = "starting\nslurmstepd: error: *** JOB 7 CANCELLED ***\n\n== the site's epilog ==\n"
    paths.coordinator_log.write_text(log)
    fake.states[paths.run_id] = JobState(JobPhase.OVER, ended_at=NOON + 60)
    state = job_watch.load(paths)
    assert (state.status, state.exit_code) == (Status.INTERRUPTED, 143)
    assert state.ended_at == NOON + 60
    assert state.reason == "job 7 was cancelled: slurmstepd: error: *** JOB 7 CANCELLED ***"
    assert {task.state for task in state.tasks} == {"lost"}
    assert {task.ended_at for task in state.tasks} == {NOON + 60}
    assert state_of(paths) == state
    assert not list((home_dir / "leftovers").iterdir())


def test_the_reason_of_a_script_that_failed_is_its_own(home_dir: Any, fake: Fake) -> None:
    paths = submitted(home_dir, fake)
    paths.coordinator_log.write_text("/var/slurm_script: line 3: module: command not found\n")
    paths.script_failure.write_text("tfcluster: runtime.slurm.setup fails: module load x\n")
    fake.states[paths.run_id] = JobState(JobPhase.OVER)
    reason = "job 7 was cancelled: tfcluster: runtime.slurm.setup fails: module load x"
    assert job_watch.load(paths).reason == reason


@pytest.mark.parametrize(
    ("status", "code"), [(Status.FAILED, 3), (Status.TIMED_OUT, 4), (Status.INTERRUPTED, 143)]
)
def test_a_job_that_the_scheduler_has_forgotten_is_over(
    home_dir: Any, fake: Fake, status: Status, code: int
) -> None:
    paths = submitted(home_dir, fake)
    fake.states.clear()
    fake.end = JobEnd("Slurm has no job 7 any more", "start it again", status)
    state = job_watch.load(paths)
    assert (state.status, state.exit_code) == (status, code)
    assert (state.reason, state.hint) == ("Slurm has no job 7 any more", "start it again")


def test_a_job_that_can_never_start_ends_its_run_and_is_removed(home_dir: Any, fake: Fake) -> None:
    paths = submitted(home_dir, fake)
    past_runs.note(paths.run_id, "slurm", "north")
    end = JobEnd("the coordinator's pod cannot start: no image", "push it", exit_code=3)
    fake.states[paths.run_id] = JobState(JobPhase.QUEUED, "it waits", end=end)
    state = job_watch.load(paths)
    assert (state.status, state.exit_code) == (Status.FAILED, 3)
    assert (state.reason, state.hint) == (end.reason, "push it")
    assert fake.stopped == [("7", True)]
    assert not list((home_dir / "leftovers").iterdir())


def test_an_end_is_recorded_once_by_many(home_dir: Any, fake: Fake) -> None:
    paths = submitted(home_dir, fake)
    fake.states[paths.run_id] = JobState(JobPhase.OVER)
    found = [registry.load(paths) for _ in range(8)]
    ends: list[RunSnapshot] = []

    def conclude(state: RunSnapshot) -> None:
        ends.append(job_watch._conclude(paths, state, JobState(JobPhase.OVER)))

    threads = [threading.Thread(target=conclude, args=(state,)) for state in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [end.status for end in ends] == [Status.INTERRUPTED] * 8
    assert paths.events.read_text().count("run_finished") == 1
    other = submitted(home_dir, fake, *STARTED)
    outdated = registry.load(other)
    writer = RunWriter(registry.load(other), other)
    writer.record(ev.RunFinished(status="succeeded", exit_code=0))
    writer.close()
    state = job_watch._conclude(other, outdated, JobState(JobPhase.OVER))
    assert state.status is Status.SUCCEEDED, "the coordinator has recorded it"


def test_a_run_of_another_cluster_is_left_as_it_is(home_dir: Any, fake: Fake) -> None:
    """A home may be shared by several clusters; this one's scheduler does not know the job."""
    paths = submitted(home_dir, fake, *STARTED, cluster="south")
    fake.states.clear()
    assert job_watch.load(paths).status is Status.RUNNING
    with pytest.raises(NodeLostError, match="in the cluster south, this machine in north"):
        job_watch.stop(paths, now=False)
    assert fake.stopped == []


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (SilentError("no slurmctld"), "slurm does not answer: no slurmctld"),
        (SetupError("there is no squeue on this machine"), "there is no squeue on this machine"),
    ],
)
def test_a_silent_scheduler_is_said_and_the_folder_is_shown(
    home_dir: Any, fake: Fake, error: Exception, sentence: str
) -> None:
    paths = submitted(home_dir, fake)
    fake.error = error
    assert job_watch.load(paths).waits_for == "nodes: job 7"
    assert job_watch.silences() == [sentence]


@pytest.mark.parametrize("never_starts", [False, True])
def test_a_copy_of_another_machines_run_ends_without_touching_its_job(
    home_dir: Any, fake: Fake, *, never_starts: bool
) -> None:
    paths = submitted(home_dir / "elsewhere", fake, *STARTED)
    assert paths.is_copy
    end = JobEnd("there is no image", status=Status.FAILED) if never_starts else None
    fake.states[paths.run_id] = JobState(JobPhase.OVER, end=end)
    state = job_watch.load(paths)
    assert state.status is (Status.FAILED if never_starts else Status.INTERRUPTED)
    reason = "there is no image" if never_starts else "the machine that has started it has fetched"
    assert reason in str(state.reason)
    assert fake.stopped == []


def test_a_stop_is_the_scheduler_s_and_the_second_one_ends_the_job(
    home_dir: Any, fake: Fake
) -> None:
    paths = submitted(home_dir, fake, *STARTED)
    job_watch.stop(paths, now=False)
    writer = RunWriter(registry.load(paths), paths)
    writer.record(ev.RunStopping(why="SIGTERM"))
    writer.close()
    job_watch.stop(paths, now=False)
    assert fake.stopped == [("7", False), ("7", True)]
    fake.error = SilentError("no slurmctld")
    with pytest.raises(NodeLostError, match="cannot be stopped: no slurmctld"):
        job_watch.stop(paths, now=False)


def test_news_are_what_has_changed(
    home_dir: Any, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_watch, "INTERVAL_S", 0.0)
    paths = submitted(home_dir, fake)
    file, heard = job_watch.WatchedState(paths), list[str]()

    def hear(count: int) -> list[str]:
        def has_heard() -> bool:
            heard.extend(file.news())
            return len(heard) >= count

        wait_for(has_heard)
        return heard[count - 1 :]

    now = time.time()
    assert hear(1) == ["queued: Priority"]
    for soon in (100.0, 400.0):  # the second moves it too little
        fake.states[paths.run_id] = JobState(JobPhase.QUEUED, "Priority", starts_at=now + soon)
        (said,) = hear(2)
        assert said.startswith("queued: Priority, starts about ")
    fake.error = SilentError("no slurmctld")
    assert hear(3) == ["slurm does not answer: no slurmctld; tfcluster keeps asking"]
    fake.error = None
    fake.states[paths.run_id] = JobState(JobPhase.QUEUED, "Resources")
    assert hear(4) == ["queued: Resources"]


@pytest.mark.parametrize("is_copied", [False, True])
def test_a_silent_scheduler_of_a_running_run_is_news_where_the_files_come_from_there(
    home_dir: Any, fake: Fake, monkeypatch: pytest.MonkeyPatch, *, is_copied: bool
) -> None:
    monkeypatch.setattr(job_watch, "INTERVAL_S", 0.0)
    paths = submitted(home_dir, fake, *STARTED)
    fake.following = SimpleNamespace(problem="") if is_copied else None
    fake.error = SilentError("no API server")
    file, heard = job_watch.WatchedState(paths), list[str]()

    def is_silent() -> bool:
        heard.extend(file.news())
        return bool(job_watch.silences())

    wait_for(is_silent)
    heard += file.news()
    if is_copied:
        fake.following.problem = "no API server"  # known already
        heard += file.news()
    said = ["slurm does not answer: no API server; tfcluster keeps asking"]
    assert heard == (said if is_copied else [])


@pytest.mark.parametrize(
    ("in_s", "text"),
    [
        (None, "Priority"),
        (-60, "Priority"),
        (3600, "Priority, starts about 13:00"),
        (3 * 86400, "Priority, starts about Thursday 12:00"),
        (30 * 86400, "Priority, starts about 2026-10-14"),
        (365 * 86400, "Priority"),
    ],
)
def test_an_estimate_has_its_day_if_that_is_far(in_s: float | None, text: str) -> None:
    at = None if in_s is None else NOON + in_s
    assert job_watch.format_wait(JobState(JobPhase.QUEUED, "Priority", at), NOON) == text


def test_a_note_about_a_job_counts_once_its_run_is_over(home_dir: Any, fake: Fake) -> None:
    paths = submitted(home_dir, fake)
    past_runs.note(paths.run_id, "slurm", "north")
    note = home_dir / "leftovers" / paths.run_id
    text = note.read_text().split("\n")
    note.write_text("\n".join([*text[:2], f"{GONE.host}/{os.getuid()}/{GONE.pid}/1", ""]))
    assert past_runs.is_live_job(paths.root)
    assert past_runs.find_leftovers() == past_runs.LeftoverAnswers()
    assert note.exists()
    registry.delete(paths)
    assert not past_runs.is_live_job(paths.root)
