"""Tasks that raise the same exception: all of them are named, although some were being ended."""

from __future__ import annotations

import signal

import pytest
from tests.launcher.supervision.story import COLLATERAL, story

from tfcluster.rundir import events as ev
from tfcluster.supervision.verdicts import CAUSE_WAIT_S


def mistake(line: int = 3) -> dict[str, object]:
    where = {"file": "main.py", "line": line, "traceback": "…"}
    return {"exception": "ValueError", "message": "bad", **where}


def test_all_that_raised_the_cause_s_own_exception_are_named_although_we_ended_them() -> None:
    replay = story("worker:0", "worker:1", "worker:2", "worker:3")
    replay.says("worker:0", "error", **mistake()).says("worker:1", "error", **mistake())
    replay.exits("worker:0", 1, error=mistake())
    assert replay.stopped() == ["worker:1", "worker:2", "worker:3"]
    replay.exits("worker:1", killed=signal.SIGKILL, by="tfcluster", error=mistake())
    replay.exits("worker:2", 1, by="tfcluster", error=mistake())  # raised while it was being ended
    replay.exits("worker:3", 1, by="tfcluster", error=mistake(line=9)).home()  # because of the end
    assert replay.cause()["task"] == "worker:0"
    assert replay.cause()["also"] == ["worker:1", "worker:2"]
    assert replay.cause()["reason"].endswith("\nthe same on worker:1, worker:2")


@pytest.mark.parametrize(
    ("line", "signalled", "by"),
    [(3, None, "itself"), (9, None, "tfcluster"), (3, signal.SIGTERM, "tfcluster")],
)
def test_who_exits_with_the_cause_s_exception_has_ended_by_itself(
    line: int, signalled: int | None, by: str
) -> None:
    replay = story().exits("worker:0", 1, error=mistake())
    code = None if signalled else 1
    event = ev.TaskExited(
        task="worker:1", attempt=1, exit_code=code, signal=signalled, ended_by="tfcluster"
    )
    found = replay.supervisor.gang.attributed(event, mistake(line))
    assert found.ended_by == by


def test_who_raised_and_does_not_end_is_to_blame_for_its_exception() -> None:
    replay = story().says("worker:1", "error", **mistake())
    replay.exits("worker:0", 1, last=COLLATERAL).after(CAUSE_WAIT_S + 0.1)
    replay.exits("worker:1", killed=signal.SIGKILL, by="tfcluster", error=mistake()).home()
    assert (replay.cause()["task"], replay.cause()["kind"]) == ("worker:1", "exception")
    assert "ValueError: bad" in replay.cause()["reason"]


def test_an_exception_without_a_line_of_the_users_is_one_too() -> None:
    said = {"exception": "RuntimeError", "message": "no line"}
    replay = story().says("worker:1", "error", **said)
    replay.exits("worker:0", 1, last=COLLATERAL).after(CAUSE_WAIT_S + 0.1)
    replay.exits("worker:1", killed=signal.SIGKILL, by="tfcluster", error=said).home()
    assert replay.cause()["reason"] == "RuntimeError: no line"


@pytest.mark.parametrize(("code", "by"), [(2, "itself"), (1, "tfcluster")])
def test_who_refuses_the_same_arguments_has_ended_by_itself(code: int, by: str) -> None:
    usage = "usage: main.py [-h]\nmain.py: error: unrecognized arguments: --epoch\n"
    replay = story().exits("worker:0", 2, last=usage)
    event = ev.TaskExited(task="worker:1", attempt=1, exit_code=code, ended_by="tfcluster")
    assert replay.supervisor.gang.attributed(event, None).ended_by == by
