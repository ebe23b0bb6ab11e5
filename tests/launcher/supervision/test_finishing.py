"""A run whose chief has succeeded lets some tasks finish, stops the others, and ends."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from tests.launcher.conftest import moved, plan_of
from tests.launcher.supervision.story import Replay, replay_of

from tfcluster.plans.plan import Supervision
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision.supervisor import EVALUATOR_S

PARAMETER_SERVER = ("chief:0", "worker:0", "worker:1", "ps:0")


def parameter_server(*tasks: str, hooks: bool = True, **supervision: float) -> Replay:
    """Return a replay of a job with the strategy `parameter_server`, as `make_plan` builds it."""
    plan = plan_of(*(tasks or PARAMETER_SERVER), hooks=hooks)
    served = tuple(replace(task, serves=task.id.job in ("worker", "ps")) for task in plan.tasks)
    return Replay(replace(plan, tasks=served, supervision=Supervision(**supervision)))  # type: ignore[arg-type]


# -- parameter servers


def test_serving_workers_are_stopped_with_the_ps_after_the_chief() -> None:
    replay = parameter_server()
    for task in ("worker:0", "worker:1", "ps:0"):
        replay.says(task, "task_ready").says(task, "serving")
    replay.exits("chief:0")
    assert replay.stopped() == ["worker:0", "worker:1", "ps:0"]
    replay.ended("worker:0", "worker:1", "ps:0")
    assert replay.outcome() == (Status.SUCCEEDED, 0)
    assert replay.messages(ev.Warned) == []


@pytest.mark.parametrize("named", ["parameter_server", "default"])
def test_independent_workers_may_finish_and_the_ps_is_stopped_last(named: str) -> None:
    make_replay = parameter_server if named == "parameter_server" else replay_of
    replay = make_replay(*PARAMETER_SERVER).says("ps:0", "serving")
    replay.says("worker:0", "progress", step=7).exits("chief:0").after(16)
    assert replay.stopped() == []
    replay.exits("worker:0").after(16)
    assert replay.stopped() == [], "worker:1 still needs the ps"
    replay.exits("worker:1")
    assert replay.stopped() == ["ps:0"]
    replay.ended("ps:0")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_a_worker_that_is_cut_fails_the_run_although_an_evaluator_awaits_its_restart() -> None:
    tasks = ("chief:0", "worker:0", "ps:0", "evaluator:0")
    replay = parameter_server(*tasks, restart_on_error=True, backoff_s=1000, finish_grace_s=60)
    replay.says("ps:0", "serving").exits("evaluator:0", 1, last="boom")
    replay.exits("chief:0").after(61).ended("worker:0", "ps:0")
    assert replay.outcome()[0] is Status.FAILED


def test_a_run_with_a_worker_stopped_before_it_finished_fails() -> None:
    replay = parameter_server(finish_grace_s=60)
    replay.says("worker:0", "progress", step=7).exits("chief:0").after(61)
    assert replay.stopped() == ["worker:0", "worker:1", "ps:0"]
    replay.ended("worker:0", "worker:1", "ps:0")
    assert replay.outcome() == (Status.FAILED, 1)
    cause = replay.cause()
    assert (cause["task"], cause["kind"], cause["also"]) == ("worker:0", "unfinished", ["worker:1"])
    assert "60 s after the chief" in cause["reason"]
    assert "supervision.finish_grace_s" in cause["hint"]


def test_tasks_that_still_run_after_the_chief_are_named_once() -> None:
    replay = parameter_server(finish_grace_s=60).says("ps:0", "serving")
    replay.says("worker:0", "progress", step=7).exits("chief:0").after(4)
    assert [event for event in replay.events if isinstance(event, ev.Finishing)] == []
    replay.after(1).says("worker:0", "progress", step=8).after(20)
    (message,) = [event for event in replay.events if isinstance(event, ev.Finishing)]
    assert (message.tasks, message.left_s) == (["worker:0", "worker:1", "ps:0"], 55)


def test_serving_workers_are_not_awaited_even_after_a_restart() -> None:
    replay = parameter_server()
    for task in ("worker:0", "worker:1", "ps:0"):
        replay.says(task, "serving")
    replay.exits("worker:1", killed=signal.SIGKILL).after(1.1).started("worker:1", 2)
    replay.exits("chief:0")
    assert replay.stopped() == ["worker:0", "worker:1", "ps:0"]


def test_workers_without_hooks_get_the_grace_and_a_warning() -> None:
    replay = parameter_server(hooks=False, finish_grace_s=60).exits("chief:0").after(59)
    assert replay.stopped() == []
    replay.after(2).ended("worker:0", "worker:1", "ps:0")
    assert replay.outcome() == (Status.SUCCEEDED, 0)
    (warning,) = replay.messages(ev.Warned)
    assert warning.startswith("worker:0, worker:1 did not end within 60 s after the chief")
    assert "hooks" in warning
    assert "supervision.finish_grace_s" in warning


def test_a_chief_that_trains_independently_outlives_its_workers() -> None:
    """A chief that trains itself may export for any time; a coordinator gets only the grace."""
    replay = parameter_server().exits("worker:0").exits("worker:1").after(3600)
    assert replay.stopped() == []
    replay.exits("chief:0")
    assert replay.stopped() == ["ps:0"]

    replay = parameter_server(max_restarts=0)
    for task in ("worker:0", "worker:1"):
        replay.says(task, "serving").exits(task, killed=signal.SIGKILL)
    replay.after(61)
    assert replay.stopped() == ["chief:0", "ps:0"]


def test_a_chief_that_still_trains_is_not_stopped_when_all_workers_failed_for_good() -> None:
    replay = parameter_server(max_restarts=0).says("chief:0", "progress", step=5)
    replay.exits("worker:0", 3).exits("worker:1", 3).after(3600)
    assert replay.stopped() == []
    replay.exits("chief:0").ended("ps:0")
    assert replay.outcome() == (Status.FAILED, 1)
    assert replay.cause()["task"] == "worker:0"


# -- workers


def test_a_late_worker_that_trained_in_step_with_the_chief_is_stopped() -> None:
    """TensorFlow may take very long to return from `fit`; no part of the training is lost."""
    replay = replay_of(finish_grace_s=60)
    for task in ("worker:0", "worker:1"):
        replay.says(task, "waiting_for_peers").says(task, "task_ready")
        replay.says(task, "progress", step=9, total_steps=9)
    replay.exits("worker:0").after(59)
    assert replay.stopped() == []
    replay.after(2)
    assert replay.stopped() == ["worker:1"]
    replay.ended("worker:1")
    assert replay.outcome() == (Status.SUCCEEDED, 0)
    assert replay.messages(ev.Warned) == [
        "worker:1 (in train.py:20 `model.fit`) did not end within 60 s after the chief: stopped"
    ]


def test_a_late_worker_that_waits_for_the_chief_fails_the_run() -> None:
    replay = replay_of(finish_grace_s=60)
    for task, total in (("worker:0", 9), ("worker:1", 12)):
        replay.says(task, "waiting_for_peers").says(task, "task_ready")
        replay.says(task, "progress", step=9, total_steps=total)
    replay.exits("worker:0").after(61).ended("worker:1")
    assert replay.outcome() == (Status.FAILED, 1)
    assert replay.cause()["reason"] == (
        "still trained (train.py:20 `model.fit`) after worker:0 had ended: step 9 of 12 against 9"
    )


def test_a_chief_that_left_its_training_is_to_blame_and_not_who_waits_for_it() -> None:
    replay = replay_of(finish_grace_s=60)
    for task in ("worker:0", "worker:1"):
        replay.says(task, "waiting_for_peers").says(task, "task_ready")
        replay.says(task, "progress", step=9, total_steps=12)
    replay.says("worker:0", "doubt", about="fit", exception="SystemExit")
    replay.exits("worker:0").after(61).ended("worker:1")
    assert replay.outcome() == (Status.FAILED, 1)
    assert (replay.cause()["task"], replay.cause()["exit_code"]) == ("worker:0", 0)
    assert replay.cause()["reason"] == (
        "left `fit` at step 9 of 12 with sys.exit and ended with exit code 0; worker:1"
        " waited for it (train.py:20 `model.fit`)"
    )


# -- nodes that are lost

FINISHED = ("worker:0", "worker:1", "evaluator:0")


def finishing(*tasks: str, lost: str = "worker:1") -> Replay:
    """Return a replay in which the chief has ended, and `lost` runs on the node `far`."""
    replay = Replay(moved(plan_of(*(tasks or FINISHED)), lost))
    for task in ("worker:0", "worker:1"):
        replay.says(task, "waiting_for_peers").says(task, "task_ready")
        replay.says(task, "progress", step=9, total_steps=9)
    return replay.exits("worker:0")


@pytest.mark.parametrize("lost", ["worker:1", "evaluator:0"])
def test_a_node_that_is_lost_after_the_chief_has_finished_is_only_a_warning(lost: str) -> None:
    replay = finishing(lost=lost).loses("far", "its agent does not answer")
    assert replay.stopped() == []
    replay.exits("evaluator:0" if lost == "worker:1" else "worker:1")
    assert replay.outcome() == (Status.SUCCEEDED, 0)
    assert replay.messages(ev.Warned) == [
        f"the run succeeded although {lost} failed: its agent does not answer"
    ]


def test_a_node_that_does_not_answer_at_the_end_of_the_grace_is_only_a_warning() -> None:
    replay = finishing("worker:0", "worker:1")
    replay.stacks["worker:1"] = None
    replay.after(60 + 6 + 1)
    assert replay.stopped() == ["worker:1"]
    replay.after(30)
    assert replay.outcome() == (Status.SUCCEEDED, 0)
    assert replay.messages(ev.Warned)[-1] == (
        "the run succeeded although worker:1 failed: its agent does not answer"
    )


def test_a_lost_node_whose_worker_works_independently_still_fails_the_run() -> None:
    replay = replay_of(*PARAMETER_SERVER, max_restarts=0).says("worker:0", "progress", step=7)
    replay.exits("chief:0").exits("worker:1").loses("local", "killed").gather()
    assert replay.outcome() == (Status.FAILED, 3)


# -- evaluators

EVALUATED = ("chief:0", "evaluator:0")


def evaluated(
    *,
    last: int | None,
    evaluated_step: int | None,
    elsewhere: bool = True,
    finish_grace_s: float = 60,
) -> Replay:
    """Return a replay: the chief saves elsewhere, the evaluator evaluates, and the chief exits."""
    replay = replay_of(*EVALUATED, finish_grace_s=finish_grace_s)
    if elsewhere:
        replay.says("chief:0", "saved_elsewhere", step=last)
    else:
        replay.says("chief:0", "saved", path="ckpt", step=last)
    if evaluated_step is not None:
        replay.says("evaluator:0", "evaluated", step=evaluated_step)
    return replay.exits("chief:0")


@pytest.mark.parametrize("elsewhere", [True, False])
def test_an_evaluator_that_never_ends_is_stopped_after_the_last_checkpoint(elsewhere: bool) -> None:
    replay = evaluated(last=300, evaluated_step=200, elsewhere=elsewhere, finish_grace_s=200)
    replay.after(120)
    assert replay.stopped() == []
    replay.says("evaluator:0", "evaluated", step=300).after(EVALUATOR_S - 1)
    assert replay.stopped() == [], "it may exit by itself"
    replay.after(1)
    assert replay.stopped() == ["evaluator:0"]
    replay.ended("evaluator:0")
    assert replay.outcome() == (Status.SUCCEEDED, 0)
    assert replay.messages(ev.Warned) == []


def test_an_evaluator_that_waits_for_further_checkpoints_is_stopped_at_once() -> None:
    replay = evaluated(last=300, evaluated_step=200, elsewhere=False)
    replay.says("evaluator:0", "evaluated", step=250, follows=True)
    assert replay.stopped() == []
    replay.says("evaluator:0", "evaluated", step=300, follows=True)
    assert replay.stopped() == ["evaluator:0"]
    assert replay.ended("evaluator:0").outcome() == (Status.SUCCEEDED, 0)


@pytest.mark.parametrize(
    ("last", "evaluated_step", "description"),
    [
        (300, None, "evaluator:0 was stopped 60 s after the chief: it had evaluated nothing. Give"),
        (
            None,
            None,
            "it had evaluated nothing. Give it more time: --set supervision.finish_grace_s=",
        ),
        (1300, 200, "not evaluated the last checkpoint, of step 1,300, only step 200. Give it"),
        (1300, 200, "EvalSpec(start_delay_secs=0, throttle_secs=10)"),
        (None, 200, "did not end within 60 s after the chief: stopped"),
    ],
)
def test_the_warning_about_a_late_evaluator_names_the_setting(
    last: int | None, evaluated_step: int | None, description: str
) -> None:
    replay = evaluated(last=last, evaluated_step=evaluated_step).after(61)
    assert replay.stopped() == ["evaluator:0"]
    replay.ended("evaluator:0")
    assert replay.outcome() == (Status.SUCCEEDED, 0)
    (warning,) = replay.messages(ev.Warned)
    assert description in warning
