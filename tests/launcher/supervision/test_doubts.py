"""A task that ends with 0 although its training did not: warnings, and the blame if others fail."""

from __future__ import annotations

from typing import Any

import pytest
from tests.launcher.supervision.story import Replay, replay_of

from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status

RAISED = {"exception": "KeyError", "message": "'std'\nTraceback …", "file": "/job/a.py", "line": 13}
EXITED = {"exception": "SystemExit", "message": "0", "file": "/job/a.py", "line": 14}
LOST_PEER = {
    "exception": "tensorflow.python.framework.errors_impl.UnavailableError",
    "message": "Collective ops is aborted by: Task /job:worker/replica:0/task:1 heartbeat timeout.",
    "file": "/job/train.py",
    "line": 17,
}


def said(replay: Replay, kind: type[ev.Warned] | type[ev.Alert] = ev.Warned) -> list[str]:
    return [event.message for event in replay.events if isinstance(event, kind)]


def trains(*, step: int = 80, total: int = 800) -> Replay:
    """Return a replay of two workers that train together and are at `step`."""
    replay = replay_of()
    for task in ("worker:0", "worker:1"):
        replay.says(task, "waiting_for_peers").says(task, "task_ready").says(task, "trains", way="")
        replay.says(task, "progress", step=step, total_steps=total)
    return replay


def doubt(about: str, **exception: Any) -> dict[str, Any]:
    return {"about": about, "exception": None, "file": None, "line": None} | exception


@pytest.mark.parametrize(
    ("reported", "words"),
    [
        (
            doubt("fit", **RAISED),
            "`fit` ended at step 80 of 800 with KeyError: 'std' (a.py:13)",
        ),
        (
            doubt("fit", **EXITED),
            "the script left `fit` with sys.exit at step 80 of 800 (a.py:14)",
        ),
        (doubt("fit"), "`fit` had not returned (step 80 of 800)"),
        (
            doubt("thread", **RAISED),
            "a thread that trained ended with KeyError: 'std' (a.py:13)",
        ),
        (doubt("exit", **RAISED), "a function of `atexit` failed: KeyError: 'std' (a.py:13)"),
        (
            doubt("child", **RAISED),
            "the training in its child process failed: KeyError: 'std' (a.py:13)",
        ),
        (doubt("another"), None),
    ],
)
def test_a_task_that_ends_with_0_although_its_training_failed_says_so(
    reported: dict[str, Any], words: str | None
) -> None:
    replay = trains().says("worker:1", "doubt", **reported)
    assert said(replay) == []
    replay.exits("worker:1").exits("worker:0")
    expected = f"worker:1: it ended with exit code 0, although {words}"
    assert said(replay) == ([expected] if words else [])
    assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_a_child_that_failed_is_said_once() -> None:
    replay = trains().says("worker:1", "doubt", **doubt("fit", **RAISED))
    replay.says("worker:1", "doubt", **doubt("child", **RAISED)).exits("worker:1")
    (warning,) = said(replay)
    assert "child process" in warning


def test_a_later_fit_that_returns_cancels_the_doubt() -> None:
    replay = trains().says("worker:1", "doubt", **doubt("fit", **RAISED))
    assert said(replay.says("worker:1", "doubt_over", about="fit").exits("worker:1")) == []


def test_what_tfcluster_stops_and_what_fails_is_not_doubtful() -> None:
    replay = trains().says("worker:0", "doubt", **doubt("fit", **RAISED))
    replay.exits("worker:0", 1, error=RAISED)
    replay.says("worker:1", "doubt", **doubt("fit")).exits("worker:1", by="tfcluster")
    assert said(replay) == []


# -- who is to blame


@pytest.mark.parametrize(
    ("reported", "words"),
    [
        (doubt("fit"), "left `fit` at step 96 of 320"),
        (
            doubt("fit", **RAISED),
            "left `fit` at step 96 of 320 with KeyError: 'std' (a.py:13)",
        ),
        (doubt("fit", **EXITED), "left `fit` at step 96 of 320 with sys.exit"),
        (None, "stopped training at step 96 of 320"),
    ],
)
def test_the_worker_that_left_its_training_is_to_blame_and_not_who_waited_for_it(
    reported: dict[str, Any] | None, words: str
) -> None:
    replay = trains(step=96, total=320)
    if reported is not None:
        replay.says("worker:1", "doubt", **reported)
    replay.exits("worker:1").after(10).says("worker:0", "doubt", **doubt("fit", **LOST_PEER))
    replay.exits("worker:0", 1, error=LOST_PEER).gather()
    assert replay.outcome() == (Status.FAILED, 1)
    cause = replay.cause()
    assert (cause["task"], cause["exit_code"], cause["kind"]) == ("worker:1", 0, "permanent")
    assert cause["reason"] == (
        f"{words} and ended with exit code 0; worker:0 waited for it (train.py:17)"
    )
    assert cause["docs"] == "docs/failures.md#ended-early"
    assert cause["hint"].startswith("find out why it ended early:")
    assert replay.last(ev.Diagnosis).collateral == ("worker:0",)


def test_a_worker_that_never_trained_is_to_blame() -> None:
    replay = replay_of().exits("worker:1").after(10)
    replay.says("worker:0", "doubt", **doubt("fit", **LOST_PEER))
    replay.exits("worker:0", 1, error=LOST_PEER).gather()
    assert replay.cause()["task"] == "worker:1"
    assert replay.cause()["reason"] == (
        "did not train and ended with exit code 0; worker:0 waited for it (train.py:17)"
    )


def test_a_chief_that_saves_alone_after_all_stopped_early_is_to_blame() -> None:
    """EarlyStopping ends the training of all workers before the announced step."""
    replay = trains(step=48, total=320).exits("worker:1").after(10)
    replay.exits("worker:0", 1, error=LOST_PEER).gather()
    assert replay.cause()["task"] == "worker:0"
    assert replay.cause()["docs"] == "docs/failures.md#chief-alone"


# -- no step


def finished(*facts: tuple[str, str, dict[str, Any]], kind: str = "training") -> list[str]:
    """Return the alerts of two workers that end with 0 after these reports."""
    replay = replay_of(kind=kind)
    for task, report, fields in facts:
        replay.says(task, report, **fields)
    return said(replay.exits("worker:0").exits("worker:1"), ev.Alert)


EMPTY = [(f"worker:{index}", "doubt", doubt("data")) for index in (0, 1)]


def test_a_run_without_data_has_an_alert() -> None:
    (message,) = finished(*EMPTY)
    assert message.startswith("no step was taken: the dataset is empty. Fix:")


def test_a_run_with_data_has_no_alert() -> None:
    assert finished(EMPTY[0]) == [], "only one dataset is empty"
    assert finished(*EMPTY, ("worker:1", "progress", {"step": 1})) == []
    assert finished(*EMPTY, ("worker:1", "doubt_over", {"about": "data"})) == []
    assert finished(*EMPTY, kind="tuner") == []
