"""The diagnosis of tasks that did different work says their steps, or where each of them was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.supervision.story import Replay, replay_of

from tfcluster.rundir import events as ev
from tfcluster.supervision.verdicts import LAST_WORD_S

RUNTIME = "tensorflow.python.framework.errors_impl"
MISMATCH = (
    "Collective ops is aborted by: Shape mismatch in the collective instance 170. Op at device"
    " /job:worker/replica:0/task:1/device:CPU:0 expected shape [] but another member in the group"
    " expected shape [1]."
)


def mismatch(line: int = 13) -> dict[str, Any]:
    error = {"exception": f"{RUNTIME}.InvalidArgumentError", "message": MISMATCH}
    return {**error, "file": "/job/train.py", "line": line, "traceback": ""}


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (
            [
                {"epochs": 2, "steps_per_epoch": 30, "total_steps": 60},
                {"epochs": 2, "steps_per_epoch": 20, "total_steps": 40},
            ],
            "the tasks train unequal steps per epoch: 30 in worker:0, worker:2; 20 in worker:1",
        ),
        (
            [{"total_steps": 60}, {"total_steps": 40}],
            "the tasks train unequal steps: 60 in worker:0, worker:2; 40 in worker:1",
        ),
    ],
)
def test_the_steps_that_the_tasks_were_to_take_are_compared(
    progress: list[dict[str, int]], words: str
) -> None:
    replay = replay_of("worker:0", "worker:1", "worker:2")
    for number in range(3):
        replay.says(f"worker:{number}", "progress", step=1, **progress[number % 2])
    replay.exits("worker:1", 1, error=mismatch()).ended("worker:0", "worker:2").gather()
    cause = replay.cause()
    assert cause["reason"].startswith(f"{words}\nInvalidArgumentError: Collective ops is aborted")
    assert cause["docs"] == "docs/failures.md#unequal-steps"


def test_if_the_steps_are_equal_the_places_of_the_tasks_are_compared() -> None:
    replay = replay_of()
    for task in ("worker:0", "worker:1"):
        replay.says(task, "progress", step=10, steps_per_epoch=10, total_steps=50)
    for task, step, line in (("worker:1", 20, 7), ("worker:0", 24, 6)):
        error = mismatch(line)
        replay.says(task, "progress", step=step).says(task, "task_error", **error)
        replay.exits(task, 1, error=error)
    assert replay.gather().cause()["reason"].splitlines()[0] == (
        "the tasks were at different lines: train.py:7 after step 20 in worker:1; train.py:6 after"
        " step 24 in worker:0"
    )


def test_steps_of_different_trainings_are_not_compared() -> None:
    """One task has begun its second `fit` while the other has still to finish its first."""
    replay = replay_of()
    first = {"epochs": 1, "steps_per_epoch": 20, "total_steps": 20}
    second = {"epochs": 1, "steps_per_epoch": 30, "total_steps": 50}
    replay.says("worker:0", "progress", step=21, **second)
    replay.says("worker:1", "progress", step=20, **first)
    replay.exits("worker:1", 1, error=mismatch()).ended("worker:0").gather()
    assert replay.cause()["reason"].startswith("InvalidArgumentError: Collective ops is aborted")


@pytest.mark.parametrize("task", ["worker:0", "worker:1"])
def test_an_exception_of_the_script_says_nothing_about_steps(task: str) -> None:
    replay = replay_of()
    for number, steps in enumerate((30, 20)):
        replay.says(f"worker:{number}", "progress", step=1, total_steps=steps)
    error = {"exception": "ValueError", "message": "no"}
    replay.exits(task, 1, error=error)
    replay.ended("worker:1" if task == "worker:0" else "worker:0").gather()
    assert replay.cause()["reason"] == "ValueError: no"


def test_a_chief_does_not_wait_for_servers_that_can_never_start() -> None:
    """Its workers run the chief's program, and are refused."""
    plan = plan_of("chief:0", "worker:0", "ps:0")
    tasks = [replace(task, serves=task.id.job != "chief") for task in plan.tasks]
    replay = Replay(replace(plan, tasks=tuple(tasks))).says("chief:0", "waiting_for_peers")
    message = "worker:0 makes a ParameterServerStrategy, which only the chief may make: …"
    error = {"exception": "tfcluster_workers.errors.NotServingError", "message": message}
    replay.exits("worker:0", 1, error=error).after(LAST_WORD_S + 0.1)
    assert set(replay.stopped()) == {"chief:0", "ps:0"}
    replay.ended("chief:0", "ps:0")
    assert "worker:0 is not restarted" in replay.last(ev.Warned).message
    assert (replay.cause()["task"], replay.outcome()[1]) == ("worker:0", 1)
    assert "per_task" in replay.cause()["hint"]
