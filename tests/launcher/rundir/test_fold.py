"""The state of a run follows from its events."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tfcluster.errors import PrepareError
from tfcluster.rundir import events as ev
from tfcluster.rundir import fold
from tfcluster.rundir.events import Event
from tfcluster.rundir.fold import apply
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import to_line
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status
from tfcluster.supervision.decisions import Outcome
from tfcluster.typed_json import from_json

STARTED = [
    ev.RunStarted(version="1", run="demo"),
    ev.NodeConnected(node="local", pid=10, guard_pid=11),
    ev.PortsHeld(node="local", ports={"worker:0": 4000, "worker:1": 4001}),
    ev.TaskStarted(task="worker:0", attempt=1, node="local", pid=20),
    ev.TaskStarted(task="worker:1", attempt=1, node="local", pid=21),
]
EXITED = ev.TaskExited(task="worker:0", attempt=1, exit_code=0, duration_s=5.0)


def replay(state: RunSnapshot, paths: RunPaths, events: list[Event]) -> RunSnapshot:
    for second, event in enumerate(events):
        apply(state, event, 200.0 + second, paths)
    return state


def waits(task: str) -> ev.TaskPhase:
    return ev.TaskPhase(task=task, attempt=1, name="waiting for peers", waits_for_peers=True)


def step(task: str, number: int, **more: Any) -> ev.Progress:
    return ev.Progress(task=task, attempt=1, step=number, **more)


def tasks(state: RunSnapshot) -> dict[str, str]:
    return {task.task: task.state for task in state.tasks}


def test_a_run_begins_with_waiting_tasks(state: RunSnapshot) -> None:
    assert state.status is Status.STARTING
    assert tasks(state) == {"worker:0": "waiting", "worker:1": "waiting"}


def test_a_task_has_the_address_on_the_interface_of_the_spec(
    state: RunSnapshot, paths: RunPaths
) -> None:
    held = ev.PortsHeld(node="local", ports={"worker:0": 4000}, host="[2001:db8::1]")
    assert replay(state, paths, [held]).task("worker:0").address == "[2001:db8::1]:4000"


def test_a_run_that_goes_back_into_the_queue_gathers_nothing(
    state: RunSnapshot, paths: RunPaths
) -> None:
    state.gathering = {"files": 3}
    queued = ev.RunQueued(reason="it was preempted", again=True)
    assert replay(state, paths, [*STARTED, queued]).gathering is None


def test_a_lost_node_s_tasks_use_nothing_that_is_known(state: RunSnapshot, paths: RunPaths) -> None:
    used = {"rss_bytes": 5, "cores": 1.0, "gpu": 0.5, "gpu_memory_bytes": 7}
    usage = ev.Usage(node="local", tasks={"worker:0": used})
    task = replay(state, paths, [*STARTED, usage]).task("worker:0")
    assert task.rss_bytes == 5
    task = replay(state, paths, [ev.NodeLost(node="local", reason="gone")]).task("worker:0")
    assert {task.rss_bytes, task.cores, task.gpu, task.gpu_memory_bytes} == {None}


def test_the_run_is_running_once_all_tasks_are_started(state: RunSnapshot, paths: RunPaths) -> None:
    assert replay(state, paths, [*STARTED[:4]]).status is Status.STARTING
    assert replay(state, paths, [STARTED[4]]).status is Status.RUNNING
    assert state.agents == {"local": {"pid": 10, "guard_pid": 11}}
    first = state.task("worker:0")
    assert (first.address, first.pid) == ("127.0.0.1:4000", 20)
    assert first.log == "logs/attempt-1/worker-0.log"


def test_a_phase_lasts_until_it_is_ended_or_the_task_joins_or_exits(
    state: RunSnapshot, paths: RunPaths
) -> None:
    importing = ev.TaskPhase(task="worker:0", attempt=1, name="importing TensorFlow")
    assert replay(state, paths, [*STARTED, importing]).tasks[0].phase == "importing TensorFlow"
    assert state.tasks[0].state == "starting"
    ends = (
        ev.TaskPhase(task="worker:0", attempt=1, name=""),
        ev.TaskReady(task="worker:0", attempt=1),
        ev.Progress(task="worker:0", attempt=1, step=1),
        EXITED,
    )
    for end in ends:
        replay(state, paths, [importing])
        assert replay(state, paths, [end]).tasks[0].phase is None


def test_devices_are_those_of_the_present_attempt(state: RunSnapshot, paths: RunPaths) -> None:
    found = ev.TaskDevices(task="worker:0", attempt=1, devices=["CPU", "GPU H200"])
    assert replay(state, paths, [*STARTED, found]).tasks[0].devices == ["CPU", "GPU H200"]
    again = ev.TaskStarted(task="worker:0", attempt=2, node="local", pid=30)
    assert replay(state, paths, [again]).tasks[0].devices == []


def test_progress_makes_a_task_running_and_keeps_the_last_known_speed(
    state: RunSnapshot, paths: RunPaths
) -> None:
    steps = [
        step("worker:1", 5, metrics={"loss": 2.0}, steps_per_second=4, mean_steps_per_second=3),
        step("worker:1", 9, epoch=1, metrics={"loss": 1.0}),
    ]
    replay(state, paths, [*STARTED, *steps])
    task = state.task("worker:1")
    assert (task.state, task.step, task.epoch, task.metrics) == ("running", 9, 1, {"loss": 1.0})
    assert (task.steps_per_second, task.mean_steps_per_second) == (4, 3)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"exit_code": 0}, "succeeded"),
        ({"exit_code": 3}, "failed"),
        ({"exit_code": None, "signal": 9}, "failed"),
        ({"exit_code": None, "signal": 9, "ended_by": "tfcluster"}, "stopped"),
        ({"exit_code": 143, "ended_by": "tfcluster"}, "stopped"),
    ],
)
def test_the_exit_of_a_task_sets_its_state(
    state: RunSnapshot, paths: RunPaths, how: dict[str, Any], expected: str
) -> None:
    replay(state, paths, [*STARTED, ev.TaskExited(task="worker:0", attempt=1, **how)])
    assert tasks(state) == {"worker:0": expected, "worker:1": "starting"}
    assert state.task("worker:0").ended_at == 205.0


def test_tasks_of_a_lost_node_are_lost_unless_their_end_is_known(
    state: RunSnapshot, paths: RunPaths
) -> None:
    stopping = ev.TaskStopping(task="worker:1", attempt=1, why="a node is lost")
    replay(state, paths, [*STARTED, EXITED, ev.NodeLost(node="local", reason="gone"), stopping])
    assert tasks(state) == {"worker:0": "succeeded", "worker:1": "lost"}
    late = ev.TaskExited(task="worker:1", attempt=1, exit_code=None, signal=9, ended_by="tfcluster")
    assert tasks(replay(state, paths, [late]))["worker:1"] == "stopped"


def test_a_stopped_run_finishes(state: RunSnapshot, paths: RunPaths) -> None:
    replay(state, paths, [*STARTED, ev.RunStopping(why="Ctrl-C")])
    assert state.status is Status.STOPPING
    replay(state, paths, [ev.RunFinished(status="interrupted", exit_code=130)])
    assert (state.status, state.exit_code, state.ended_at) == (Status.INTERRUPTED, 130, 200.0)
    assert (state.reason, state.hint) == (None, None)


def test_the_reason_is_kept_if_no_task_is_to_blame(state: RunSnapshot, paths: RunPaths) -> None:
    error = PrepareError("prepare failed on local", fix="look at its log")
    replay(state, paths, [Outcome(Status.FAILED, 3, error).event()])
    assert (state.diagnosis, state.reason) == (None, "prepare failed on local")
    assert state.hint == "look at its log"
    loaded = from_json(RunSnapshot, state.to_json())
    assert (loaded.reason, loaded.hint) == (state.reason, state.hint)


def test_the_state_is_the_same_after_it_is_saved_and_loaded(
    state: RunSnapshot, paths: RunPaths
) -> None:
    error = ev.TaskError(task="worker:0", attempt=1, exception="ValueError", message="no", line=3)
    cause = ev.Diagnosis(root_cause={"task": "worker:0"}, collateral=("worker:1",))
    lost = ev.LogLost(task="worker:0", attempt=1, bytes=7, reason="disk full")
    verdict = ev.StepVerdict(attempt=1, bound="straggler", causes=("worker:1",), message="slow")
    warned = ev.Warned(message="mind")
    replay(state, paths, [*STARTED, error, lost, lost, warned, verdict, cause])
    assert (
        from_json(RunSnapshot, state.to_json() | {"of a newer version": 1, "_places": 1}) == state
    )
    assert state.task("worker:0").log_lost_bytes == 14
    assert state.warnings == ["mind"]
    assert (state.task("worker:0").error or {})["line"] == 3


def test_a_loss_that_is_nan_is_valid_json(state: RunSnapshot, paths: RunPaths) -> None:
    """Python would write NaN, which is not valid JSON and stops other readers."""
    metrics = {"loss": math.nan, "norm": -math.inf, "rate": 0.5, "big": 1.7e308, "count": 10**20}
    step = ev.Progress(task="worker:0", attempt=1, step=3, metrics=metrics)
    replay(state, paths, [*STARTED, step])
    written = metrics | {"loss": "NaN", "norm": "-Infinity"}
    assert json.loads(to_line(step, seq=1, time=0.0))["metrics"] == written
    assert state.to_json()["tasks"][0]["metrics"] == written
    read = from_json(RunSnapshot, state.to_json()).task("worker:0").metrics
    assert math.isnan(read.pop("loss"))
    assert read == {"norm": -math.inf, "rate": 0.5, "big": 1.7e308, "count": 10**20}


def test_every_change_is_named_after_an_event() -> None:
    changes = {name for name in vars(fold._Changes) if not name.startswith("_")}
    assert changes - {"state", "now", "paths"} <= {kind.type for kind in Event.__subclasses__()}


def test_every_event_has_a_unique_type() -> None:
    kinds = Event.__subclasses__()
    names = {kind.type for kind in kinds}
    assert "run_finished" in names
    assert len({kind.__name__ for kind in kinds}) == len(names)
    assert all(kind.fields for kind in kinds)


def test_a_task_whose_restart_was_cancelled_does_not_stay_restarting(
    state: RunSnapshot, paths: RunPaths
) -> None:
    killed = ev.TaskExited(task="worker:1", attempt=1, exit_code=None, signal=9, duration_s=1.0)
    restart = ev.Restarting(reason="worker:1: killed", attempt=2, of=4, from_step=None, delay_s=1.0)
    end = ev.RunFinished(status="interrupted", exit_code=130)
    replay(state, paths, [*STARTED, killed, EXITED, restart, end])
    assert tasks(state) == {"worker:0": "stopped", "worker:1": "stopped"}


@pytest.mark.parametrize(
    ("end", "left"),
    [
        (ev.NodeLost(node="far", reason="no answer"), "lost"),
        (ev.TaskExited(task="worker:1", attempt=1, exit_code=1, ended_by="tfcluster"), "stopped"),
    ],
)
def test_tasks_that_the_next_attempt_does_without_do_not_stay_restarting(
    state: RunSnapshot, paths: RunPaths, end: Event, left: str
) -> None:
    """Such a run used to be `restarting` for as long as the smaller gang trained."""
    state.task("worker:1").node = "far"
    first = ev.Restarting(reason="it failed", attempt=2, of=4)
    smaller = ev.Restarting(reason="it failed", attempt=2, of=4, members=("worker:0",))
    started = ev.TaskStarted(task="worker:0", attempt=2, node="local", pid=30)
    replay(state, paths, [*STARTED, end, EXITED, first, smaller, started])
    assert state.status is Status.RUNNING
    assert tasks(state) == {"worker:0": "starting", "worker:1": left}
    again = ev.Restarting(reason="worker:1 is back: growing to 2 workers", attempt=3, of=5)
    replay(state, paths, [EXITED, again])
    assert tasks(state)["worker:1"] == "restarting"


def test_a_failure_that_the_run_has_recovered_from_is_not_its_diagnosis(
    state: RunSnapshot, paths: RunPaths
) -> None:
    """The root cause of attempt 1 used to stand below the reason for which attempt 2 ended."""
    cause = ev.Diagnosis(root_cause={"task": "worker:1", "reason": "killed"}, attempt=1)
    killed = ev.TaskExited(task="worker:1", attempt=1, exit_code=None, signal=9)
    restart = ev.Restarting(reason="worker:1: killed", attempt=2, of=4)
    replay(state, paths, [*STARTED, killed, EXITED, cause, restart])
    assert state.diagnosis is not None
    again = [ev.TaskStarted(task=f"worker:{n}", attempt=2, node="local", pid=30) for n in (0, 1)]
    end = ev.RunFinished(status="timed_out", exit_code=4, reason="run_deadline_s = 60 has passed")
    replay(state, paths, [*again, end])
    assert state.diagnosis is None


def test_late_events_of_an_earlier_attempt_are_ignored(state: RunSnapshot, paths: RunPaths) -> None:
    second_start = ev.TaskStarted(task="worker:0", attempt=2, node="local", pid=30)
    replay(state, paths, [*STARTED, second_start, EXITED])
    assert (tasks(state)["worker:0"], state.task("worker:0").exit_code) == ("starting", None)


def test_a_run_that_goes_on_has_no_task_and_no_node_of_its_former_start(
    state: RunSnapshot, paths: RunPaths
) -> None:
    """Its coordinator was killed while all tasks ran."""
    submitted = ev.JobSubmitted(backend="slurm", id="7", cluster="lab")
    stalled = ev.TaskFrozen(task="worker:0", attempt=1, signal=19)
    continued = ev.RunContinued(restarts=1, attempt=2, ran_s=60.0)
    replay(state, paths, [submitted, *STARTED, stalled, continued])
    assert (state.status, tasks(state)) == (
        Status.STARTING,
        {"worker:0": "restarting", "worker:1": "restarting"},
    )
    assert (state.nodes, state.agents, state.task("worker:0").frozen_by) == ({}, {}, None)
    assert (state.job or {})["restarts"] == 1
    assert state.continued == {"attempt": 2, "ran_s": 60.0}
    replay(state, paths, [ev.TaskStarted(task="worker:0", attempt=2, node="local", pid=30)])
    assert tasks(state)["worker:0"] == "starting"


def test_a_restart_forgets_the_parts_of_steps_also_of_a_task_that_it_leaves_out(
    state: RunSnapshot, paths: RunPaths
) -> None:
    parts = {"input": 0.5, "waiting": 0.0}
    measured = ev.StepTimes(task="worker:1", attempt=1, step=9, steps=5, seconds=0.5, parts=parts)
    verdict = ev.StepVerdict(attempt=1, bound="input", causes=("worker:1",), message="slow")
    replay(state, paths, [*STARTED, measured, verdict])
    assert state.task("worker:1").step_parts == {"input": 0.1, "waiting": 0.0}
    assert state.step_verdict is not None
    smaller = ev.Restarting(attempt=2, of=3, reason="worker:1: killed", members=("worker:0",))
    after = replay(state, paths, [smaller])
    assert (after.task("worker:1").step_parts, after.step_verdict) == ({}, None)


def test_a_stalled_run_has_no_speed_until_the_next_step(
    state: RunSnapshot, paths: RunPaths
) -> None:
    stalled = ev.Stalled(silent_s=10.0, what="worker:1 is in a.py:3", causes=("worker:1",))
    replay(state, paths, [*STARTED, step("worker:0", 5, steps_per_second=20.0), stalled])
    assert state.status is Status.STALLED
    assert state.task("worker:0").steps_per_second is None
    assert state.stall is not None
    assert (state.stall["since"], state.stall["causes"]) == (196.0, ["worker:1"])
    assert from_json(RunSnapshot, json.loads(json.dumps(state.to_json()))) == state
    goes_on = [step("worker:0", 6, steps_per_second=9.0), ev.StallEnded(silent_s=12)]
    after = replay(state, paths, [*goes_on])
    assert (after.status, after.stall) == (Status.RUNNING, None)
    assert state.task("worker:0").steps_per_second == 9.0


@pytest.mark.parametrize(
    "event",
    [
        ev.Restarting(reason="stalled", attempt=2, of=4),
        ev.RunStopping(why="Ctrl-C"),
        ev.RunFinished(status="failed", exit_code=1),
    ],
)
def test_a_stall_is_over_once_the_run_restarts_or_ends(
    state: RunSnapshot, paths: RunPaths, event: Event
) -> None:
    replay(state, paths, [*STARTED, ev.Stalled(silent_s=10.0), event])
    assert state.status is not Status.STALLED
    assert state.stall is None


def test_tasks_that_take_their_steps_together_have_one_speed(
    state: RunSnapshot, paths: RunPaths
) -> None:
    speeds = {"steps_per_second": 20.0, "mean_steps_per_second": 18.0, "examples_per_second": 640.0}
    joined = [*STARTED, waits("worker:0"), waits("worker:1")]
    replay(state, paths, [*joined, step("worker:1", 4), step("worker:0", 5, **speeds)])
    assert state.task("worker:1").steps_per_second == 20.0
    replay(state, paths, [step("worker:1", 6, steps_per_second=23.0)])
    shared = state.task("worker:1")
    assert {name: getattr(shared, name) for name in speeds} == speeds


def test_a_task_that_ended_first_has_the_speed_that_is_known_later(
    state: RunSnapshot, paths: RunPaths
) -> None:
    joined = [*STARTED, waits("worker:0"), waits("worker:1"), step("worker:1", 19)]
    ended = ev.TaskExited(task="worker:1", attempt=1, exit_code=1)
    last = step("worker:0", 19, mean_steps_per_second=18.0)
    replay(state, paths, [*joined, ended, last])
    assert state.task("worker:1").mean_steps_per_second == 18.0


def test_metrics_of_the_end_of_an_epoch_stay_until_the_next_one(
    state: RunSnapshot, paths: RunPaths
) -> None:
    first = {"loss": 0.5, "accuracy": 0.8, "val_loss": 0.6, "learning_rate": 0.1}
    replay(state, paths, [*STARTED, step("worker:0", 10, epoch=1, metrics=first)])
    replay(state, paths, [step("worker:0", 11, epoch=2, metrics={"loss": 0.4})])
    late = {"val_loss": 0.6, "learning_rate": 0.1}
    assert state.task("worker:0").metrics == {"loss": 0.4} | late
    replay(state, paths, [step("worker:0", 13)])  # the step that a killed task had reached
    task = state.task("worker:0")
    assert (task.step, task.epoch, task.metrics) == (13, 2, {"loss": 0.4} | late)
    replay(state, paths, [step("worker:0", 1, metrics={"mae": 1.0})])  # another training
    assert state.task("worker:0").metrics == {"mae": 1.0}


def test_a_run_that_ends_because_a_node_stays_away_has_lost_its_tasks(
    state: RunSnapshot, paths: RunPaths
) -> None:
    state.task("worker:1").node = "far"
    lost = ev.NodeLost(node="far", reason="no answer")
    restart = ev.Restarting(reason="worker:1: no answer", attempt=2, of=2)
    end = ev.RunFinished(status="failed", exit_code=3)
    replay(state, paths, [*STARTED, lost, EXITED, restart, end])
    assert tasks(state) == {"worker:0": "stopped", "worker:1": "lost"}
    assert state.nodes == {"local": "gone", "far": "gone"}


def test_tasks_that_train_alone_have_their_own_speeds(state: RunSnapshot, paths: RunPaths) -> None:
    alone = [step("worker:0", 5, steps_per_second=20.0), step("worker:1", 6, steps_per_second=9.0)]
    replay(state, paths, [*STARTED, *alone])
    assert [task.steps_per_second for task in state.tasks] == [20.0, 9.0]
