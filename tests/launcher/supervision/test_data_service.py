"""The tf.data service of a run: who waits for it, how long it stays, and what its loss means."""

from __future__ import annotations

import signal

import pytest
from tests.launcher.supervision.story import replay_of, spread_gang

from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision.supervisor import EVALUATOR_S

SERVERS = ("data_worker:0", "data_worker:1", "data_dispatcher:0")
TASKS = ("worker:0", "worker:1", *SERVERS)


def test_it_runs_on_when_the_gang_restarts() -> None:
    replay = replay_of(*TASKS).exits("worker:1", killed=signal.SIGKILL)
    assert replay.stopped() == ["worker:0"]
    replay.ended("worker:0").gather(3).begin(2)
    assert [member.attempt for member in replay.supervisor.gang] == [2, 2, 1, 1, 1]
    replay.exits("data_worker:1", killed=signal.SIGKILL)
    restarts = [(event.task, event.from_step) for event in replay.all(ev.Restarting)]
    assert restarts == [(None, 3), ("data_worker:1", None)], "a server has no checkpoint"


def test_it_is_stopped_when_the_last_task_that_trains_has_ended() -> None:
    replay = replay_of(*TASKS).exits("worker:0")
    assert replay.stopped() == []
    replay.exits("worker:1")
    assert replay.stopped() == [*SERVERS]
    assert replay.ended(*SERVERS).outcome() == (Status.SUCCEEDED, 0)


def test_an_evaluator_can_read_from_it_until_it_ends() -> None:
    replay = replay_of(*TASKS, "evaluator:0").says("worker:0", "saved", path="/c", step=300)
    replay.exits("worker:1").exits("worker:0")
    replay.says("evaluator:0", "evaluated", step=300).after(EVALUATOR_S + 1)
    assert replay.stopped() == ["evaluator:0"]
    replay.ended("evaluator:0")
    assert replay.stopped()[1:] == [*SERVERS]
    assert replay.ended(*SERVERS).outcome() == (Status.SUCCEEDED, 0)


def test_a_part_of_a_cluster_ends_it_with_its_own_tasks() -> None:
    replay = replay_of("worker:1", *SERVERS).exits("worker:1")
    assert replay.stopped() == [*SERVERS]


def test_an_attempt_ends_with_the_node_of_the_dispatcher_which_has_its_journal() -> None:
    replay = spread_gang(*TASKS).leaves("data-dispatcher-0")
    assert sorted(replay.stopped()) == ["data_dispatcher:0", "worker:0", "worker:1"]
    replay.ended(*replay.stopped()).gather(3).begin(2)
    assert [member.attempt for member in replay.supervisor.gang] == [2, 2, 1, 1, 2]


def test_a_server_that_was_due_to_restart_is_not_awaited_at_the_end() -> None:
    replay = replay_of(*TASKS, backoff_s=60).exits("data_worker:1", killed=signal.SIGKILL)
    replay.exits("worker:0").exits("worker:1").ended("data_worker:0", "data_dispatcher:0")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


@pytest.mark.parametrize("fails", [("data_dispatcher:0",), ("data_worker:0", "data_worker:1")])
def test_the_run_fails_once_the_service_is_lost_for_good(fails: tuple[str, ...]) -> None:
    replay = replay_of(*TASKS)
    for task in fails:
        assert replay.supervisor.outcome is None
        replay.exits(task, 1, last="ImportError: no tensorflow")
    assert replay.stopped() == [task for task in TASKS if task not in fails]
    for task in replay.stopped():
        replay.ended(task)
    assert replay.outcome() == (Status.FAILED, 1)
    assert replay.cause()["task"] == fails[0]


def test_one_data_worker_less_is_a_warning() -> None:
    replay = replay_of(*TASKS).exits("data_worker:1", 1, last="boom")
    assert "data_worker:1 is not restarted" in replay.last(ev.Warned).message
    replay.exits("worker:0").exits("worker:1").ended("data_worker:0", "data_dispatcher:0")
    assert replay.outcome() == (Status.SUCCEEDED, 0)
