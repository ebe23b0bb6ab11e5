"""A run in a scheduler's job: what ends the job ends the run, or sends it back into the queue."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.launcher.coordinator.scripted import (
    HANG_UP,
    LOCAL,
    REMOTE,
    Agent,
    Ended,
    perform,
    plan_on_two_nodes,
)

from tfcluster.backends import jobs
from tfcluster.backends.jobs import Ending, OwnJob
from tfcluster.coordinator import foreground, launch
from tfcluster.coordinator.foreground import RunSession, count_vain_starts, find_interrupted
from tfcluster.coordinator.gathering import NOTHING, RunGathering
from tfcluster.coordinator.launch import End, Launch
from tfcluster.errors import JobEndedError
from tfcluster.node_loss import LossNature, NodeLoss
from tfcluster.plans.plan import Plan
from tfcluster.rundir import fold, registry, run_writer
from tfcluster.rundir.events import (
    JobJoined,
    JobSubmitted,
    RunContinued,
    RunFinished,
    TaskStarted,
)
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.states import Status
from tfcluster.supervision.decisions import Outcome, StopRequest

PREEMPTED = Ending("preempted", comes_back=True)
TIME_OVER = Ending("its time limit is over")
CANCELLED = Ending("it was cancelled (scancel)")
ANNOUNCED: Mapping[str, Any] = {"type": "end_announced", "signal": int(signal.SIGTERM)}


@dataclass(frozen=True)
class Job(OwnJob):
    """A job whose scheduler gives a fixed answer."""

    answer: Ending | None = None
    may_come_back: bool = True

    async def can_come_back(self) -> bool:
        return self.may_come_back

    async def ending(self, *, signal: int | None = None) -> Ending | None:
        return self.answer


def run(
    tmp_path: Path,
    paths: RunPaths,
    answer: Ending | None,
    *,
    may_come_back: bool = True,
    **scripts: Any,
) -> Ended:
    agents = {name: Agent(name, str(tmp_path), **scripts) for name in (LOCAL, REMOTE)}
    job = Job("slurm", "7", 0, answer, may_come_back)
    return perform(plan_on_two_nodes(tmp_path), agents, paths, job=job)


@pytest.mark.parametrize("code", [42, 143])
def test_a_preempted_gang_that_has_saved_goes_back_into_the_queue(
    tmp_path: Path, paths: RunPaths, code: int
) -> None:
    codes = {"worker:0": code, "worker:1": code}
    script = {"trained": [ANNOUNCED]}
    ended = run(tmp_path, paths, PREEMPTED, script=script, exit_codes=codes)
    assert ended.outcome.comes_back == "preempted"
    assert (ended.state.status, ended.state.waits_for) == (Status.QUEUED, "nodes: preempted")
    assert ended.state.task("worker:1").ended_by == "tfcluster"
    assert (ended.state.diagnosis, ended.state.restarts) == (None, [])


END_ANNOUNCED = {"script": {"trained": [ANNOUNCED]}}
NO_AGENT = {"answers_again": False, "connections": 1}
LOST_POD = {**NO_AGENT, "refusal": NodeLoss("the pod was deleted", LossNature.PREEMPTED)}


def lost_at(moment: str) -> dict[str, Any]:
    return {"answers_again": False, "script": {moment: [HANG_UP]}}


@pytest.mark.parametrize(
    ("answer", "may_come_back", "happens", "status", "code", "reason", "restarts"),
    [
        (TIME_OVER, True, END_ANNOUNCED, Status.INTERRUPTED, 143, "job 7 was ended: its time", []),
        (None, True, END_ANNOUNCED, Status.INTERRUPTED, 143, None, []),
        (PREEMPTED, True, NO_AGENT, Status.QUEUED, None, "preempted", []),
        (None, True, NO_AGENT, Status.FAILED, 3, "cannot be reached", []),
        (None, True, lost_at("welcome"), Status.QUEUED, None, "which is lost", [None]),
        (None, True, lost_at("ports"), Status.QUEUED, None, "which is lost", [None]),
        (None, True, LOST_POD, Status.QUEUED, None, "which is lost", [False]),
        (None, False, lost_at("ports"), Status.FAILED, 3, "lost before the tasks started: its", []),
        (CANCELLED, True, lost_at("ports"), Status.INTERRUPTED, 143, "it was cancelled", [None]),
    ],
)
def test_what_happens_to_a_run_and_its_job_ends_it_or_sends_it_back_into_the_queue(
    tmp_path: Path,
    paths: RunPaths,
    answer: Ending | None,
    may_come_back: bool,
    happens: dict[str, Any],
    status: Status,
    code: int | None,
    reason: str | None,
    restarts: list[bool | None],
) -> None:
    """`restarts`: whether each restart, which is recorded, counts."""
    ended = run(tmp_path, paths, answer, may_come_back=may_come_back, **happens)
    state = ended.state
    assert (state.status, state.exit_code, state.attempt) == (
        status,
        code,
        1 if happens is END_ANNOUNCED else 0,
    )
    assert bool(ended.outcome.comes_back) is (status is Status.QUEUED)
    said = state.waits_for if status is Status.QUEUED else state.reason
    assert said == reason or (reason and reason in (said or ""))
    assert [restart.get("counts") for restart in state.restarts] == restarts
    is_jobs_end = isinstance(ended.outcome.error, JobEndedError)
    assert is_jobs_end is (status is Status.INTERRUPTED and answer is not None)
    if is_jobs_end:
        assert f"tfcluster up --resume {state.run}" in (state.hint or "")


@pytest.fixture
def in_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process runs in job 7 of Slurm, which was requeued once."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")


@pytest.mark.usefixtures("in_job")
def test_a_script_of_the_users_own_finds_the_run_of_its_former_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, plan = tmp_path / "home", plan_on_two_nodes(tmp_path)
    nodes = tuple(replace(node, backend="slurm") for node in plan.nodes)
    plan = replace(plan, nodes=nodes, spec_path="/spec.json")

    def make(name: str, plan: Plan, job: str, restarts: int = 0) -> RunWriter:
        paths = run_writer.make(name, home)
        state = fold.first_state(plan, paths, registry.this_process(), 100.0)
        state.pid_start = 1  # its coordinator is gone
        writer = RunWriter(state, paths)
        writer.record(JobJoined(backend="slurm", id=job, restarts=restarts))
        writer.record(TaskStarted(task="worker:0", attempt=3, node=LOCAL, pid=1))
        return writer

    make("other-spec", replace(plan, spec_path="/other.json"), "7").close()
    make("other-job", plan, "8").close()
    make("other-tasks", replace(plan, tasks=plan.tasks[:1]), "7").close()
    make("other-up-of-this-start", plan, "7", restarts=2).close()
    assert find_interrupted(plan, home) is None
    ours = make("ours", plan, "7")
    ours.save()
    found = find_interrupted(plan, home)
    assert found is not None
    assert found.run_id == "ours"
    monkeypatch.setenv("SLURM_RESTART_COUNT", "")
    assert find_interrupted(plan, home) is None
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    ours.record(RunFinished(status="interrupted", exit_code=143))
    ours.save()
    assert find_interrupted(plan, home) is not None, "its job has started again"
    ours.paths.cancelled.touch()
    assert find_interrupted(plan, home) is None, "the user has ended it"
    ours.paths.cancelled.unlink()
    ours.record(RunContinued(restarts=1, attempt=4, ran_s=1.0))
    ours.save()
    assert find_interrupted(plan, home) is None, "this start of the job has continued it already"
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    assert find_interrupted(plan, home) is not None
    ours.record(RunFinished(status="failed", exit_code=1))
    ours.close()
    assert find_interrupted(plan, home) is None


class Slurm:
    """Slurm, as far as a coordinator that goes back into the queue needs it."""

    def __init__(self) -> None:
        self.requeued = 0

    def requeue(self, job: str) -> None:
        self.requeued += 1


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    found = Slurm()
    monkeypatch.setattr(jobs, "of_backend", lambda backend: found)
    return found


def start_job(
    plan: Plan, paths: RunPaths, monkeypatch: pytest.MonkeyPatch, start: int, newest: str
) -> End:
    """Run the `start`-th start of a run's job, which is ended when `newest` has been saved."""
    monkeypatch.setattr(jobs, "own", lambda backend: OwnJob("slurm", "7", start - 1))

    async def run(self: RunSession, *_: Any) -> Outcome:
        self.run_writer.record(TaskStarted(task="worker:0", attempt=start, node=LOCAL, pid=1))
        monkeypatch.setattr(RunGathering, "mark_newest", lambda self: newest)
        why, limit = "its time limit is near", "runtime.slurm.time"
        outcome = Outcome(Status.INTERRUPTED, 143, comes_back=why, limit=limit)
        self.run_writer.record(outcome.event())
        return outcome

    monkeypatch.setattr(RunSession, "_run", run)
    return RunSession(Launch(plan=plan, spec={}), paths).run(lambda plan: None)


def submitted_run(tmp_path: Path, paths: RunPaths) -> Plan:
    """Record a run that was submitted as job 7."""
    plan = plan_on_two_nodes(tmp_path)
    writer = RunWriter(fold.first_state(plan, paths, registry.this_process(), 100.0), paths)
    writer.record(JobSubmitted(backend="slurm", id="7"))
    writer.close(keeps_reserve=True)
    return plan


def test_three_starts_of_a_job_in_a_row_without_a_newer_checkpoint_end_the_run(
    tmp_path: Path, paths: RunPaths, monkeypatch: pytest.MonkeyPatch, slurm: Slurm
) -> None:
    plan = submitted_run(tmp_path, paths)
    monkeypatch.setattr(RunGathering, "mark_newest", lambda self: NOTHING)
    for start, newest in enumerate([NOTHING, NOTHING, "step 7", "step 7", "step 7"], 1):
        end = start_job(plan, paths, monkeypatch, start, newest)
        assert end.state.status is Status.QUEUED, (start, end.state.reason)
    end = start_job(plan, paths, monkeypatch, 6, "step 7")
    assert slurm.requeued == 5
    assert (end.state.status, end.outcome.exit_code) == (Status.FAILED, 1)
    assert end.state.reason == (
        "no newer checkpoint within runtime.slurm.time: 3 starts of job 7 in a row were ended"
        " before they had saved one"
    )
    assert f"tfcluster up --resume {paths.run_id}" in (end.state.hint or "")


def test_a_job_that_slurm_itself_starts_again_and_again_ends_at_its_next_start(
    tmp_path: Path, paths: RunPaths, monkeypatch: pytest.MonkeyPatch, slurm: Slurm
) -> None:
    """The coordinator's node is switched off each time: it cannot say anything."""
    plan = submitted_run(tmp_path, paths)
    monkeypatch.setattr(RunGathering, "mark_newest", lambda self: NOTHING)
    for start in (1, 2, 3):
        start_job(plan, paths, monkeypatch, start, NOTHING)
        state = registry.load_recorded(paths)
        writer = RunWriter(state, paths)
        state.status, state.exit_code = Status.RUNNING, None
        writer.mark_changed()
        writer.close(keeps_reserve=True)
    end = start_job(plan, paths, monkeypatch, 4, NOTHING)
    assert (end.state.status, end.state.attempt) == (Status.FAILED, 3), "it is not tried again"
    assert (end.state.reason or "").startswith("no checkpoint: 3 starts of job 7 in a row")


def test_a_lost_node_has_its_own_limit(tmp_path: Path) -> None:
    plan = plan_on_two_nodes(tmp_path)
    state = fold.first_state(plan, RunPaths(tmp_path), registry.this_process(), 100.0)
    state.attempt, state.newest_at_start, state.vain_starts = 2, NOTHING, 1
    assert count_vain_starts(state, NOTHING) == 2
    assert count_vain_starts(state, "step 3") == 0
    assert count_vain_starts(state, "") == 0, "storage that nobody can look into"
    state.restarts.append({"attempt": 3, "of": 4})
    assert count_vain_starts(state, NOTHING) == 1
    state.restarts[-1]["counts"] = False
    assert count_vain_starts(state, NOTHING) == 2


def test_a_signal_to_all_processes_of_a_run_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The starter at a terminal passes it on, too; a later one, or a second Ctrl-C, kills."""
    stops: list[StopRequest] = []
    coordinator: Any = SimpleNamespace(stop=stops.append)
    clock = [1000.0]
    monkeypatch.setattr(launch, "_repeated_until", 0.0)
    monkeypatch.setattr(launch, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGINT):
        foreground.stop_by(coordinator, number)
    assert [stop.why for stop in stops] == ["SIGTERM", "Ctrl-C", "Ctrl-C"]
    clock[0] += 2
    foreground.stop_by(coordinator, signal.SIGTERM)
    assert stops[3:] == [launch.SIGNALS[signal.SIGTERM]]
