"""Counting the members of a gang by standing agrees with a scan of all, at a constant cost."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.supervision.story import COLLATERAL, replay_of

from tfcluster.agent.catalogue import TaskReady, WaitingForPeers
from tfcluster.rundir.events import TaskExited
from tfcluster.supervision import decisions
from tfcluster.supervision.decisions import judge
from tfcluster.supervision.gang import Gang
from tfcluster.supervision.member import Member


def _exit(member: Member, code: int, by: str = "itself") -> Member:
    event = TaskExited(task=member.name, attempt=1, exit_code=code, signal=None, ended_by=by)
    return replace(member, exit=event)


CHANGES: list[Callable[[Gang, Member, float], Member]] = [
    lambda gang, member, now: replace(member, is_ordered=True, started_at=now, answer_by=None),
    lambda gang, member, now: member.after(WaitingForPeers(), now),
    lambda gang, member, now: member.after(TaskReady(), now),
    lambda gang, member, now: replace(member, answer_by=now + 15),
    lambda gang, member, now: replace(member, is_stopping=True),
    lambda gang, member, now: replace(member, frozen_by=19),
    lambda gang, member, now: _exit(member, 0),
    lambda gang, member, now: _exit(member, 1),
    lambda gang, member, now: _exit(member, 143, by="tfcluster"),
    lambda gang, member, now: replace(
        member, failure=replace(member.bare_failure, last_lines=COLLATERAL)
    ),
    lambda gang, member, now: replace(member, is_lost=True),
    lambda gang, member, now: replace(member, is_restart_due=True),
    lambda gang, member, now: gang.renew(member),
]


@pytest.mark.parametrize("seed", range(20))
def test_counts_agree_with_a_scan_of_all_members(seed: int) -> None:
    chance = random.Random(seed)
    gang = Gang(plan_of("worker:0", "worker:1", "worker:2", "ps:0", "evaluator:0"))
    for now in range(60):
        gang.put(chance.choice(CHANGES)(gang, chance.choice([*gang]), float(now)))
        members = [*gang]
        living = [m for m in members if m.is_ordered or m.is_started if not m.is_over]
        waiting = [m.waits_since for m in gang.core() if m.is_running and m.waits_for_peers]
        assert gang.running() == [m for m in members if m.is_running]
        assert gang.waits_since == min(filter(None, waiting), default=None)
        assert {one.due_by for one in gang.distinct if one.is_running or one.is_awaited} == {
            member.answer_by for member in living
        }
        assert {one.standing for one in gang.distinct} == {member.standing for member in members}
        assert len(gang.distinct) == len({member.standing for member in members})
        assert gang.judge() is judge(members, chief=gang["worker:0"], forms_gang=True)


def test_the_cost_of_an_event_does_not_depend_on_the_size_of_the_gang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The events include the start, reports, a crash and the end of the last survivor."""
    assert _evaluations_per_task(300, monkeypatch) <= _evaluations_per_task(10, monkeypatch) * 1.1


def _evaluations_per_task(size: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return how often a standing is evaluated, or looked at to judge, per task."""
    evaluations = 0
    standing: Callable[[Member], tuple[object, ...]] = vars(Member)["standing"].fget
    is_failure = decisions.is_failure

    def counted(member: Member) -> tuple[object, ...]:
        nonlocal evaluations
        evaluations += 1
        return standing(member)

    def counted_failure(task: Member, *, chief_done: bool) -> bool:
        nonlocal evaluations
        evaluations += 1
        return is_failure(task, chief_done=chief_done)

    with monkeypatch.context() as patch:
        patch.setattr(Member, "standing", property(counted))
        patch.setattr(decisions, "is_failure", counted_failure)
        names = [f"worker:{index}" for index in range(size)]
        replay = replay_of(*names)
        for kind in ("waiting_for_peers", "task_ready", "progress"):
            for name in names:
                replay.says(name, kind, step=1)
        replay.exits(names[-1], 1).ended(*names[:-1])
    return evaluations / size
