"""Alerts: what makes a run's result doubtful."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.launcher.supervision.story import Replay, replay_of

from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status


def messages(replay: Replay) -> list[str]:
    return [event.message for event in replay.events if isinstance(event, ev.Alert)]


def together(**supervision: Any) -> Replay:
    replay = replay_of(**supervision)
    for task in ("worker:0", "worker:1"):
        replay.says(task, "waiting_for_peers").says(task, "ready")
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
    assert messages(replay) == ([said] if said else [])
    assert replay.supervisor.outcome is None


def test_tasks_that_train_together_give_one_alert() -> None:
    replay = together()
    for step in (3, 4):
        for task in ("worker:1", "worker:0"):
            replay.says(task, "progress", step=step, metrics={"loss": math.nan})
    assert messages(replay) == ["loss is NaN since step 3 (worker:1)"]


def test_tasks_that_train_alone_give_an_alert_each() -> None:
    replay = replay_of(kind="plain")
    for task in ("worker:1", "worker:0"):
        replay.says(task, "progress", step=3, metrics={"loss": math.nan})
    assert len(messages(replay)) == 2


def test_a_loss_that_is_a_number_again_is_said_once() -> None:
    replay = together()
    for step, loss in enumerate((1.0, math.inf, 2.0, math.inf, 3.0), start=1):
        replay.says("worker:0", "progress", step=step, metrics={"loss": loss})
    assert messages(replay) == [
        "loss is infinite since step 2 (worker:0)",
        "loss was infinite from step 2 to 3 (worker:0)",
    ]


def test_the_run_ends_where_the_spec_wants_that() -> None:
    replay = together(stop_on_nan=True)
    replay.says("worker:0", "progress", step=7, metrics={"loss": math.nan})
    assert replay.stopped() == ["worker:0", "worker:1"]
    replay.ended("worker:0", "worker:1")
    assert replay.outcome() == (Status.FAILED, 1)
    cause = replay.cause()
    assert (cause["kind"], cause["reason"]) == ("diverged", "loss is NaN since step 7 (worker:0)")
    assert cause["docs"] == "docs/failures.md#diverged"
    assert replay.supervisor.next_attempt is None
