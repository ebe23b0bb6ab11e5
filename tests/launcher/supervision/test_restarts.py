"""What follows the end of a task: each kind of end, for each kind of task."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from tests.launcher.conftest import plan_of, spread
from tests.launcher.supervision.story import Replay

from tfcluster.plans.plan import TaskId
from tfcluster.rundir import events as ev
from tfcluster.supervision import decisions as do
from tfcluster.supervision.verdicts import FROZEN_S

ERROR = {"exception": "ValueError", "message": "bad", "file": "main.py", "line": 3}
IMPORT = {"exception": "ModuleNotFoundError", "message": "No module named 'x'", "file": "m.py"}


def saved_then_raised(replay: Replay, task: str) -> Replay:
    replay.supervisor.checkpoint_gathered(10, replay.now)
    return replay.exits(task, 1, error=ERROR)


def cannot_start(replay: Replay, task: str) -> Replay:
    replay = Replay(replay.plan, starts=False).order(task)
    replay.supervisor.start_failed(task, 1, "no such file", replay.now)
    replay._take()
    return replay


def freezes(replay: Replay, task: str) -> Replay:
    replay.froze(task).after(FROZEN_S + 0.1)
    is_killed = task in replay.stopped()
    return replay.exits(task, killed=signal.SIGKILL, by="tfcluster") if is_killed else replay


ENDS: dict[str, Callable[[Replay, str], Replay]] = {
    "killed": lambda replay, task: replay.exits(task, killed=signal.SIGKILL),
    "crashed": lambda replay, task: replay.exits(task, killed=signal.SIGSEGV),
    "frozen": freezes,
    "node lost": lambda replay, task: replay.loses(TaskId.parse(task).file_name),
    "preempted": lambda replay, task: replay.exits(task, 42),
    "port taken": lambda replay, task: replay.exits(task, 1, last="Could not start gRPC server"),
    "exit code": lambda replay, task: replay.exits(task, 3),
    "raised": lambda replay, task: replay.exits(task, 1, error=ERROR),
    "saved, raised": saved_then_raised,
    "import": lambda replay, task: replay.exits(task, 1, error=IMPORT),
    "cannot start": cannot_start,
}
SERVED = ("worker:0", "worker:1", "data_worker:0", "data_worker:1", "data_dispatcher:0")
TASKS: dict[str, tuple[tuple[str, ...], str, Any]] = {
    "worker": (("worker:0", "worker:1"), "worker:1", "training"),
    "chief": (("worker:0", "worker:1"), "worker:0", "training"),
    "evaluator": (("worker:0", "worker:1", "evaluator:0"), "evaluator:0", "training"),
    "tuner": (("chief:0", "worker:0", "worker:1"), "worker:1", "tuner"),
    "search": (("chief:0", "worker:0", "worker:1"), "chief:0", "tuner"),
    "plain": (("worker:0", "worker:1"), "worker:1", "plain"),
    "data": (SERVED, "data_worker:0", "training"),
    "dispatch": (SERVED, "data_dispatcher:0", "training"),
}


FOLLOWS = """
              worker    chief     evaluator  tuner      search    plain      data       dispatch
killed        all       all       alone      alone      all       alone      alone      alone
crashed       all       all       alone      alone      all       alone      alone      alone
frozen        all       all       alone      alone      all       goes-on    alone      alone
node-lost     all       all       alone      all        all       alone      alone      all
preempted     all-free  all-free  alone-free alone-free all-free  alone-free alone-free alone-free
port-taken    elsewhere elsewhere alone-free alone-free elsewhere alone-free alone-free alone-free
exit-code     ends-1    ends-1    goes-on    goes-on    ends-1    goes-on    goes-on    ends-1
raised        ends-1    ends-1    goes-on    goes-on    ends-1    goes-on    goes-on    ends-1
saved,-raised all       all       alone      alone      all       alone      alone      alone
import        ends-1    ends-1    goes-on    goes-on    ends-1    goes-on    goes-on    ends-1
cannot-start  ends-3    ends-3    ends-3     ends-3     ends-3    ends-3     ends-3     ends-3
"""
"""For each end (rows) of each task: who restarts, for free or not, or the exit code of the run.

``elsewhere``: all restart at once, for free, with other ports; ``goes-on``: the other tasks do.
"""


def rows() -> list[tuple[str, str, str]]:
    head, *lines = [line.split() for line in FOLLOWS.strip().splitlines()]
    return [
        (line[0].replace("-", " "), task, follows)
        for line in lines
        for task, follows in zip(head, line[1:], strict=True)
    ]


def test_each_end_of_each_task_is_in_the_table() -> None:
    assert [(end, task) for end, task, _ in rows()] == [(e, t) for e in ENDS for t in TASKS]


@pytest.mark.parametrize(("end", "task", "follows"), rows())
def test_the_end_of_a_task_restarts_all_or_it_alone_or_ends_the_run(
    end: str, task: str, follows: str
) -> None:
    tasks, failing, kind = TASKS[task]
    replay = ENDS[end](Replay(spread(plan_of(*tasks, kind=kind))).after(5), failing)
    for member in [one for one in replay.supervisor.gang if one.is_stopping and one.is_running]:
        replay.ended(member.name)
    if do.GatherCheckpoints() in replay.orders:
        replay.gather(10 if end.startswith("saved") else None)

    again, restarts = replay.supervisor.next_attempt, replay.all(ev.Restarting)
    counts = "-free" if restarts and restarts[-1].counts is False else ""
    if replay.supervisor.outcome is not None:
        found = f"ends-{replay.end().exit_code}"
    elif again is None:
        found = f"alone{counts}" if restarts else "goes-on"
    elif again.fresh_ports:
        found = "elsewhere" if counts and again.delay_s == 0 else "with other ports"
    else:
        found = f"all{counts}"
    assert found == follows
    if restarts:
        assert restarts[-1].task == (None if again else failing)
