"""The report names all tasks that raise the same exception, even those being stopped."""

from __future__ import annotations

import signal

import pytest
from tests.launcher.supervision.story import COLLATERAL, replay_of

from tfcluster.rundir import events as ev
from tfcluster.supervision.verdicts import CAUSE_WAIT_S


def mistake(line: int = 3) -> dict[str, object]:
    where = {"file": "main.py", "line": line, "traceback": "…"}
    return {"exception": "ValueError", "message": "bad", **where}


def test_stopped_tasks_that_raised_the_cause_s_exception_are_named() -> None:
    replay = replay_of("worker:0", "worker:1", "worker:2", "worker:3")
    replay.says("worker:0", "task_error", **mistake()).says("worker:1", "task_error", **mistake())
    replay.exits("worker:0", 1, error=mistake())
    assert replay.stopped() == ["worker:1", "worker:2", "worker:3"]
    replay.exits("worker:1", killed=signal.SIGKILL, by="tfcluster", error=mistake())
    replay.exits("worker:2", 1, by="tfcluster", error=mistake())  # raised while it was stopped
    replay.exits(
        "worker:3", 1, by="tfcluster", error=mistake(line=9)
    ).gather()  # raised because it was stopped
    assert replay.cause()["task"] == "worker:0"
    assert replay.cause()["also"] == ["worker:1", "worker:2"]
    assert replay.cause()["reason"].endswith("\nthe same on worker:1, worker:2")


@pytest.mark.parametrize(
    ("line", "signalled", "by"),
    [(3, None, "itself"), (9, None, "tfcluster"), (3, signal.SIGTERM, "tfcluster")],
)
def test_a_task_that_exits_with_the_cause_s_exception_ended_by_itself(
    line: int, signalled: int | None, by: str
) -> None:
    replay = replay_of().exits("worker:0", 1, error=mistake())
    code = None if signalled else 1
    event = ev.TaskExited(
        task="worker:1", attempt=1, exit_code=code, signal=signalled, ended_by="tfcluster"
    )
    found = replay.supervisor.gang.attributed(event, mistake(line))
    assert found.ended_by == by


def test_a_task_that_raised_but_hangs_is_blamed_for_its_exception() -> None:
    replay = replay_of().says("worker:1", "task_error", **mistake())
    replay.exits("worker:0", 1, last=COLLATERAL).after(CAUSE_WAIT_S + 0.1)
    replay.exits("worker:1", killed=signal.SIGKILL, by="tfcluster", error=mistake()).gather()
    assert (replay.cause()["task"], replay.cause()["kind"]) == ("worker:1", "exception")
    assert "ValueError: bad" in replay.cause()["reason"]


def test_a_hanging_task_is_also_blamed_for_an_exception_without_a_user_frame() -> None:
    message = {"exception": "RuntimeError", "message": "no line"}
    replay = replay_of().says("worker:1", "task_error", **message)
    replay.exits("worker:0", 1, last=COLLATERAL).after(CAUSE_WAIT_S + 0.1)
    replay.exits("worker:1", killed=signal.SIGKILL, by="tfcluster", error=message).gather()
    assert replay.cause()["reason"] == "RuntimeError: no line"


@pytest.mark.parametrize(("code", "by"), [(2, "itself"), (1, "tfcluster")])
def test_a_task_that_rejects_the_same_arguments_ended_by_itself(code: int, by: str) -> None:
    usage = "usage: main.py [-h]\nmain.py: error: unrecognized arguments: --epoch\n"
    replay = replay_of().exits("worker:0", 2, last=usage)
    event = ev.TaskExited(task="worker:1", attempt=1, exit_code=code, ended_by="tfcluster")
    assert replay.supervisor.gang.attributed(event, None).ended_by == by
