"""The goodput of a run, and where the rest of its time went, follow from its events."""

from __future__ import annotations

import json

import pytest
from tests.launcher.conftest import plan_of

from tfcluster.plans.plan import JobKind
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event
from tfcluster.rundir.fold import apply, first_state
from tfcluster.rundir.goodput import Goodput
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import this_process
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.typed_json import from_json

History = tuple[tuple[float, Event], ...]


def started(attempt: int, task: str = "worker:0") -> Event:
    return ev.TaskStarted(task=task, attempt=attempt, node="local", pid=20)


def step(number: int, attempt: int = 1, task: str = "worker:0") -> Event:
    return ev.Progress(task=task, attempt=attempt, step=number)


def exited(attempt: int = 1, code: int | None = 0, task: str = "worker:0") -> Event:
    return ev.TaskExited(
        task=task, attempt=attempt, exit_code=code, signal=None if code == 0 else 9
    )


def restarting(attempt: int, task: str | None = None) -> Event:
    return ev.Restarting(reason="killed", attempt=attempt, of=4, task=task)


TASKS = ("worker:0", "worker:1", "ps:0", "evaluator:0")
FINISHED = ev.RunFinished(status="succeeded", exit_code=0)
TRAINED: History = (*((2.0, started(1, task)) for task in TASKS), (10.0, step(1)))
"""A run that has started at 0 and has taken its first step."""
CONTINUED = ev.RunContinued(restarts=1, attempt=2, ran_s=20.0)


def fold(paths: RunPaths, *history: tuple[float, Event]) -> Goodput:
    state = first_state(plan_of(*TASKS), paths, this_process(), 0.0)
    for now, event in history:
        apply(state, event, now, paths)
        # As a coordinator goes on that reads the state of the one before.
        state.goodput = from_json(RunSnapshot, json.loads(json.dumps(state.to_json()))).goodput
    assert state.goodput is not None
    assert sum(state.goodput.seconds.values()) == pytest.approx(history[-1][0])
    return state.goodput


def test_a_run_that_nothing_interrupts(paths: RunPaths) -> None:
    end = ((98.0, exited()), (99.0, exited(task="worker:1")), (100.0, FINISHED))
    goodput = fold(paths, *TRAINED, (50.0, step(50)), (90.0, step(100)), *end)
    assert goodput.seconds == {"start": 10.0, "steps": 80.0, "other": 9.0, "gathering": 1.0}
    assert goodput.share == 0.8
    assert (goodput.restarts, goodput.restart_cost) == (0, {})


def test_steps_up_to_that_of_the_failure_are_done_again(paths: RunPaths) -> None:
    goodput = fold(
        paths,
        *TRAINED,
        (40.0, step(31)),
        *((41.0, exited(code=None)), (42.0, restarting(2))),
        (42.2, step(31, task="worker:1")),  # a late report of the attempt before
        *((44.0, started(2)), (46.0, started(2, "worker:1"))),
        (51.0, step(21, 2)),
        (61.0, step(41, 2)),  # half of these steps are new
        (81.0, step(61, 2)),
    )
    assert goodput.seconds == {
        "start": 10.0, "steps": 30.0 + 5.0 + 20.0, "restart": 6.0, "restore": 5.0, "repeated": 5.0,
    }  # fmt: skip
    assert goodput.restart_cost == {"restart": 6.0, "restore": 5.0, "repeated": 5.0}
    assert goodput.lost_steps == 11


@pytest.mark.parametrize(("first", "per_call", "lost"), [(32, 1, 0), (40, 10, 1), (1, 1, 31)])
def test_the_steps_after_the_checkpoint_of_a_restart_are_lost(
    paths: RunPaths, first: int, per_call: int, lost: int
) -> None:
    """The first report of an attempt is that of its first call, which may do several steps."""
    resumed = ev.Progress(task="worker:0", attempt=2, step=first, steps_per_execution=per_call)
    restart = ((42.0, restarting(2)), (44.0, started(2)), (50.0, resumed), (51.0, step(60, 2)))
    goodput = fold(paths, *TRAINED, (40.0, step(31)), *restart)
    assert (goodput.lost_steps, goodput.has_resumed) == (lost, True)


def test_an_attempt_that_fails_sooner_hides_none_of_the_steps_done_before(paths: RunPaths) -> None:
    goodput = fold(
        paths,
        *TRAINED,
        *((40.0, step(31)), (42.0, restarting(2)), (44.0, started(2)), (50.0, step(1, 2))),
        *((60.0, step(11, 2)), (61.0, restarting(3)), (62.0, started(3)), (63.0, exited(3, 1))),
        *((64.0, restarting(4)), (65.0, started(4)), (70.0, step(1, 4)), (100.0, step(31, 4))),
        (109.0, step(40, 4)),
    )
    assert goodput.restarts == 2, "attempt 3 took no step that a restart could interrupt"
    assert goodput.lost_steps == 31 + 11, "attempt 2 did steps 1 to 11 only"
    assert goodput.seconds == {
        "start": 10.0, "steps": 39.0, "restart": 4.0 + 5.0, "restore": 6.0 + 5.0, "repeated": 40.0,
    }  # fmt: skip


def test_the_task_that_reports_first_stands_for_the_gang(paths: RunPaths) -> None:
    goodput = fold(
        paths,
        *TRAINED,
        *((20.0, step(11)), (21.0, ev.NodeLost(node="other", reason="gone"))),
        *((22.0, restarting(2)), (23.0, started(2, "worker:1"))),
        (25.0, step(3, 2, "evaluator:0")),
        *((27.0, step(11, 2, "worker:1")), (37.0, step(21, 2, "worker:1"))),
    )
    assert goodput.seconds == {"start": 10.0, "steps": 20.0, "restart": 3.0, "restore": 4.0}


def test_a_second_training_of_the_same_attempt_counts(paths: RunPaths) -> None:
    goodput = fold(paths, *TRAINED, (20.0, step(50)), (25.0, step(1)), (30.0, step(50)))
    assert goodput.seconds == {"start": 10.0, "steps": 20.0}


def test_the_restart_of_another_task_interrupts_nothing(paths: RunPaths) -> None:
    alone = restarting(2, "ps:0")
    goodput = fold(paths, *TRAINED, (11.0, alone), (12.0, started(2, "worker:1")), (14.0, step(9)))
    assert goodput.seconds == {"start": 10.0, "steps": 4.0}


STALLED: History = (*TRAINED, (20.0, step(11)), (50.0, ev.Stalled(silent_s=28.0)))
GOES_ON = ev.StallEnded(silent_s=58.0)


@pytest.mark.parametrize("end", [(step(12), GOES_ON), (GOES_ON, step(12))])
def test_a_stall_lasts_from_the_last_sign_of_work(paths: RunPaths, end: tuple[Event, ...]) -> None:
    ends = [(80.0, event) for event in end]
    goodput = fold(paths, *STALLED, *ends, (90.0, step(22)))
    assert goodput.seconds == {"start": 10.0, "steps": 22.0, "stalled": 58.0}


def test_a_stall_that_a_restart_ends_is_no_part_of_it(paths: RunPaths) -> None:
    resumed = ((54.0, started(2)), (60.0, step(12, 2)))
    goodput = fold(paths, *STALLED, (51.0, restarting(2)), *resumed)
    assert goodput.seconds["stalled"] == 29.0
    assert goodput.restart_cost == {"restart": 3.0, "restore": 6.0}


@pytest.mark.parametrize("before", [29.0, 10.0])
def test_suspended_time_is_no_time_of_steps(paths: RunPaths, before: float) -> None:
    """A step may be reported between the end of the pause and its event."""
    paused = ((before, step(5)), (30.0, ev.Suspended(seconds=15.0)), (34.0, step(9)))
    goodput = fold(paths, *TRAINED, *paused)
    assert goodput.seconds == {"start": 10.0, "steps": 9.0, "suspended": 15.0}


def test_a_run_waits_in_the_queue_before_its_start_and_when_it_goes_back(paths: RunPaths) -> None:
    allocated = ev.NodesAllocated(hosts={}, addresses={})
    goodput = fold(
        paths,
        *((1.0, ev.RunQueued(reason="Resources")), (4.0, ev.RunQueued(reason="Priority"))),
        *((8.0, allocated), (9.0, started(1)), (13.0, step(1)), (20.0, step(8))),
        *((21.0, ev.RunStopping(why="preempted")), (22.0, step(9)), (23.0, exited())),
        *((24.0, ev.RunQueued(reason="preempted", again=True)), (54.0, CONTINUED)),
        *((55.0, allocated), (57.0, started(2)), (59.0, step(10, 2)), (60.0, step(11, 2))),
    )
    assert goodput.seconds == {
        "queue": 7.0 + 30.0, "start": 1.0 + 5.0, "steps": 9.0 + 1.0,
        "restart": 2.0 + 3.0, "restore": 2.0,
    }  # fmt: skip
    assert goodput.restarts == 1


def test_while_a_coordinator_that_was_killed_is_away_the_run_is_in_the_queue(
    paths: RunPaths,
) -> None:
    usage = ev.Usage(node="local", tasks={})
    again = ((70.0, CONTINUED), (72.0, started(2)), (75.0, step(5, 2)), (77.0, step(9, 2)))
    goodput = fold(paths, *TRAINED, (20.0, step(9)), (21.0, usage), *again)
    assert goodput.seconds == {
        "queue": 49.0, "start": 10.0, "steps": 10.0, "restart": 1.0 + 2.0, "restore": 3.0,
        "repeated": 2.0,
    }  # fmt: skip


def test_nodes_that_a_running_gang_asks_for_do_not_queue_it(paths: RunPaths) -> None:
    asks = ev.RunQueued(reason="Resources")
    goodput = fold(paths, *TRAINED, (11.0, asks), (20.0, step(11)))
    assert goodput.seconds == {"start": 10.0, "steps": 10.0}


def test_a_live_run_is_counted_until_its_last_event(paths: RunPaths) -> None:
    goodput = fold(paths, *TRAINED, (20.0, step(11)), (24.0, ev.Usage(node="local", tasks={})))
    assert goodput.seconds == {"start": 10.0, "steps": 14.0}


def test_the_goodput_is_not_known_before_the_first_step(paths: RunPaths) -> None:
    goodput = fold(paths, *TRAINED[:-1])
    assert (goodput.share, goodput.seconds) == (None, {"start": 2.0})


@pytest.mark.parametrize("kind", ["plain", "tuner"])
def test_only_a_training_has_a_goodput(paths: RunPaths, kind: JobKind) -> None:
    state = first_state(plan_of(kind=kind), paths, this_process(), 0.0)
    apply(state, step(1), 1.0, paths)
    assert state.goodput is None
    assert state.to_json()["goodput"] is None
