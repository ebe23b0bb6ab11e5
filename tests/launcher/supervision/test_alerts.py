"""Alerts: what makes a run's result doubtful."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.supervision.story import COLLATERAL, Replay, replay_of

from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision.alerts import WEIGHTS
from tfcluster.supervision.supervisor import ALONE_S


def together(**supervision: Any) -> Replay:
    replay = replay_of(**supervision).joined()
    return replay


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("loss", math.nan, "loss is NaN since step 3,400 (worker:0)"),
        ("val_loss", math.inf, "val_loss is infinite since step 3,400 (worker:0)"),
        ("decoder/loss", -math.inf, "decoder/loss is -infinite since step 3,400 (worker:0)"),
        ("closs", math.nan, None),
        ("accuracy", math.nan, None),
        ("loss", 1e30, None),
    ],
)
def test_a_loss_that_is_no_number_is_an_alert(name: str, value: float, said: str | None) -> None:
    replay = together().says("worker:0", "progress", step=3400, metrics={name: value})
    assert replay.messages(ev.Alert) == ([said] if said else [])
    assert replay.supervisor.outcome is None


# -- training together


WORKERS = ("worker:0", "worker:1")


def trains(*, ways: tuple[str, str] = ("", ""), joins: bool = False, meets: str = "") -> Replay:
    """Return a replay of two workers that compute gradients, each in its way.

    `joins`: by a multi-worker strategy; `meets`: a task that knows others in another way.
    """
    replay = together() if joins else replay_of()
    for task, way in zip(WORKERS, ways, strict=True):
        if joins or task == meets:
            replay.says(task, "meets_peers")
        replay.says(task, "trains", way=way)
    return replay


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({}, "the script makes no MultiWorkerMirroredStrategy"),
        ({"ways": ("mirrored", "mirrored")}, "MirroredStrategy spans one machine"),
        ({"ways": ("horovod", "horovod")}, "Horovod knows one process only"),
        (
            {"joins": True, "ways": ("outside_scope", "outside_scope")},
            "the model was made outside of strategy.scope()",
        ),
    ],
)
def test_workers_that_never_meet_train_alone(facts: dict[str, Any], reason: str) -> None:
    replay = trains(**facts).after(ALONE_S - 1)
    assert replay.messages(ev.Alert) == []
    (message,) = replay.after(1).after(100).messages(ev.Alert)
    assert message.startswith(reason)
    assert ": each of the 2 workers trains alone. Fix: " in message
    assert message.endswith("; if that is intended: --set job.kind=plain")
    assert replay.exits("worker:0").exits("worker:1").outcome() == (Status.SUCCEEDED, 0)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"joins": True}, "no gradient is summed over the workers"),
        ({"ways": ("jax", "jax")}, "the script does not call jax.distributed.initialize()"),
    ],
)
def test_what_may_still_come_is_missed_only_at_the_end(facts: dict[str, Any], reason: str) -> None:
    """A loop may sum the gradients of many batches, and average only every hour."""
    replay = trains(**facts).after(3600)
    assert replay.messages(ev.Alert) == []
    (message,) = replay.exits("worker:0").exits("worker:1").messages(ev.Alert)
    assert message.startswith(reason)


def test_a_short_run_whose_workers_train_alone_says_so_at_its_end() -> None:
    replay = trains().exits("worker:0")
    assert replay.messages(ev.Alert) == []
    assert len(replay.exits("worker:1").messages(ev.Alert)) == 1


def test_keras_on_jax_trains_alone_without_a_distribution_over_the_processes() -> None:
    (message,) = trains(joins=True, ways=("outside_distribution",) * 2).after(60).messages(ev.Alert)
    assert message.startswith("Keras has no distribution over the processes: each of the 2 workers")
    joined = trains(joins=True, ways=("jax", "jax")).after(60).exits("worker:0").exits("worker:1")
    assert joined.messages(ev.Alert) == []


def test_workers_that_meet_do_not_train_alone() -> None:
    """Horovod and JAX join their processes at any time, and sum by themselves."""
    assert trains(meets="worker:1").after(60).messages(ev.Alert) == []
    reduces = trains(joins=True).says("worker:1", "reduces")
    assert reduces.after(60).messages(ev.Alert) == []
    late = trains().after(5).says("worker:0", "meets_peers")
    assert late.after(60).messages(ev.Alert) == []


def test_a_worker_that_computes_no_gradient_may_train_later() -> None:
    replay = replay_of().says("worker:0", "trains", way="")
    assert replay.after(60).messages(ev.Alert) == []


@pytest.mark.parametrize(
    "plan",
    [{"kind": "plain"}, {"kind": "tuner"}, {"strategy": "mirrored"}, {"strategy": "default"}],
)
def test_workers_that_are_meant_to_train_alone_give_no_alert(plan: dict[str, Any]) -> None:
    replay = Replay(replace(plan_of(*WORKERS), **plan))
    for task in WORKERS:
        replay.says(task, "trains", way="")
    assert replay.after(60).messages(ev.Alert) == []


@pytest.mark.parametrize(("other", "are_equal"), [("ab", True), ("cd", False)])
def test_workers_that_read_the_same_first_batches_give_an_alert(
    other: str, are_equal: bool
) -> None:
    replay = together().says("worker:0", "first_batches", fingerprints=["a", "b"])
    replay.says("worker:1", "first_batches", fingerprints=[*other])
    expected = "worker:0, worker:1 train on the same batches, so they all do the same work. Fix:"
    assert [m.startswith(expected) for m in replay.messages(ev.Alert)] == [True] * are_equal


@pytest.mark.parametrize(
    ("first", "second", "lost"),
    [
        ([(2, 0)], [(2, 1)], "1/2"),
        ([(3, 0)], [(3, 2)], "2/3"),
        ([(2, 0), (2, 1)], [(2, 0), (2, 1)], None),  # for training and for validation
        ([(2, 0)], [(2, 0)], None),
        ([(2, 0)], [], None),
    ],
)
def test_data_that_the_workers_and_tensorflow_shard_gives_an_alert(
    first: list[tuple[int, int]], second: list[tuple[int, int]], lost: str | None
) -> None:
    replay = together()
    for task, taken in (("worker:0", first), ("worker:1", second)):
        for shards, index in taken:
            replay.says(task, "sharded", shards=shards, index=index)
    expected = f"and by TensorFlow, so {lost} of the data is left out of each epoch. Fix: remove"
    assert [expected in message for message in replay.messages(ev.Alert)] == [True] * (
        lost is not None
    )


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (["ckpt-6"], [], "worker:0 restored ckpt-6, worker:1 nothing"),
        (["ckpt-6"], ["ckpt-5"], "worker:0 restored ckpt-6, worker:1 restored ckpt-5"),
        (
            ["backup-2.0"],
            ["backup-1.20"],
            "worker:0 restored backup-2.0, worker:1 restored backup-1",
        ),
        (["ckpt-6"], ["ckpt-6"], None),
        ([], [], None),
        (["chief.weights.h5"], ["worker_1.weights.h5"], None),
        (["model-0"], ["model-1"], None),
        (["b.h5", "a.h5"], ["a.h5", "b.h5"], None),
    ],
)
def test_workers_that_restored_different_states_give_an_alert(
    first: list[str], second: list[str], said: str | None
) -> None:
    replay = together().says("worker:0", "restored", names=first)
    assert replay.messages(ev.Alert) == [], "worker:1 may still restore"
    replay.says("worker:1", "restored", names=second)
    expected = f"the workers start from different states: {said}"
    assert [m.startswith(expected) for m in replay.messages(ev.Alert)] == [True] * (
        said is not None
    )


def test_different_states_are_the_root_cause_of_steps_that_do_not_match() -> None:
    replay = together().says("worker:0", "restored", names=["ckpt-6"])
    replay.says("worker:1", "restored", names=[]).exits("worker:0")
    replay.exits("worker:1", 1, last=COLLATERAL).gather()
    cause = replay.cause()
    assert cause["reason"] == (
        "the workers start from different states: worker:0 restored ckpt-6, worker:1 nothing\n"
        "then worker:1: did alone what all workers must do: worker:0 had ended before"
    )
    assert cause["hint"].startswith("restore in every worker")
    assert cause["docs"] == "docs/failures.md#states-differ"


def test_different_states_are_not_the_cause_of_an_exception_of_the_script() -> None:
    replay = together().says("worker:0", "restored", names=["ckpt-6"])
    replay.says("worker:1", "restored", names=[])
    replay.exits("worker:1", 1, last="ValueError: bad").ended("worker:0").gather()
    assert "different states" not in replay.cause()["reason"]


# -- losses


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("kind", "reports", "said"),
    [
        (
            "training",
            [(3, 1, NAN), (3, 0, NAN), (4, 1, NAN)],
            ["loss is NaN since step 3 (worker:1)"],
        ),
        (
            "plain",
            [(3, 1, NAN), (3, 0, NAN)],
            ["loss is NaN since step 3 (worker:1)", "loss is NaN since step 3 (worker:0)"],
        ),
        (
            "training",
            [(1, 0, 1.0), (2, 0, INF), (3, 0, 2.0), (4, 0, INF), (5, 0, 3.0)],
            [
                "loss is infinite since step 2 (worker:0)",
                "loss was infinite from step 2 to 3 (worker:0)",
            ],
        ),
        # A script's own loop may report the loss of its own part of the batch.
        (
            "training",
            [(2, 0, NAN), (2, 1, 0.3), (3, 0, NAN)],
            ["loss is NaN since step 2 (worker:0)"],
        ),
    ],
    ids=["together", "alone", "a number again", "a number of another worker"],
)
def test_a_loss_that_is_no_number_is_said_once_for_tasks_that_train_together(
    kind: str, reports: list[tuple[int, int, float]], said: list[str]
) -> None:
    replay = together() if kind == "training" else replay_of(kind=kind)
    for step, worker, loss in reports:
        replay.says(f"worker:{worker}", "progress", step=step, metrics={"loss": loss})
    assert replay.messages(ev.Alert) == said


def weights(value: float) -> dict[str, float]:
    return {WEIGHTS: value}


def test_weights_that_are_no_numbers_are_an_alert_unless_the_loss_has_given_it() -> None:
    replay = together().says("worker:1", "weights", metrics=weights(math.nan), step=40)
    replay.says("worker:0", "weights", metrics=weights(math.nan), step=40)
    replay.says("worker:0", "progress", step=41, metrics={"loss": math.nan})
    assert replay.messages(ev.Alert) == ["the weights are NaN at step 40 (worker:1)"]
    replay.says("worker:1", "weights", metrics=weights(0.0), step=50)
    assert replay.messages(ev.Alert)[1:] == ["the weights were NaN from step 40 to 50 (worker:1)"]
    unknown = together().says("worker:0", "weights", metrics=weights(math.inf))
    assert unknown.messages(ev.Alert) == ["the weights are infinite (worker:0)"]
    loss = together().says("worker:0", "progress", step=3, metrics={"loss": math.nan})
    assert len(loss.says("worker:0", "weights", metrics=weights(math.nan)).messages(ev.Alert)) == 1


def test_weights_are_said_although_a_loss_is_a_number_again() -> None:
    replay = together()
    for step, loss in enumerate((math.nan, 2.0), start=1):
        replay.says("worker:0", "progress", step=step, metrics={"loss": loss})
    replay.says("worker:0", "weights", metrics=weights(math.nan), step=3)
    assert replay.messages(ev.Alert)[2:] == ["the weights are NaN at step 3 (worker:0)"]


@pytest.mark.parametrize(
    ("kind", "metric", "said"),
    [("progress", "loss", "loss is NaN since"), ("weights", WEIGHTS, "the weights are NaN at")],
)
def test_the_run_ends_where_the_spec_wants_that(kind: str, metric: str, said: str) -> None:
    replay = together(stop_on_nan=True)
    replay.says("worker:0", kind, step=7, metrics={metric: math.nan})
    assert replay.stopped() == ["worker:0", "worker:1"]
    replay.ended("worker:0", "worker:1")
    assert replay.outcome() == (Status.FAILED, 1)
    cause = replay.cause()
    assert (cause["kind"], cause["reason"]) == ("diverged", f"{said} step 7 (worker:0)")
    assert cause["docs"] == "docs/failures.md#diverged"
    assert replay.supervisor.next_attempt is None
