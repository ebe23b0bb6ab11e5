"""Counting the members of a gang by standing agrees with a scan of all, at a constant cost."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.supervision.story import COLLATERAL, replay_of

from tfcluster.agent.catalogue import Ready, WaitingForPeers
from tfcluster.plan.plan import TaskId
from tfcluster.rundir.events import TaskExited
from tfcluster.supervision import member_counts
from tfcluster.supervision.decisions import judge
from tfcluster.supervision.gang import Gang
from tfcluster.supervision.member import Member

CHIEF = TaskId("worker", 0)


def _exit(member: Member, code: int, by: str = "itself") -> None:
    member.exit = TaskExited(
        task=str(member.id), attempt=1, exit_code=code, signal=None, ended_by=by
    )


CHANGES: list[Callable[[Gang, Member, float], object]] = [
    lambda gang, member, now: member.note_start(now),
    lambda gang, member, now: member.note_report(WaitingForPeers(), now),
    lambda gang, member, now: member.note_report(Ready(), now),
    lambda gang, member, now: setattr(member, "answer_by", now + 15),
    lambda gang, member, now: setattr(member, "is_stopping", True),
    lambda gang, member, now: setattr(member, "frozen_by", 19),
    lambda gang, member, now: _exit(member, 0),
    lambda gang, member, now: _exit(member, 1),
    lambda gang, member, now: _exit(member, 143, by="tfcluster"),
    lambda gang, member, now: member.fails(last_lines=COLLATERAL),
    lambda gang, member, now: setattr(member, "is_lost", True),
    lambda gang, member, now: setattr(member, "is_restart_due", True),
    lambda gang, member, now: gang.renew(member),
]


@pytest.mark.parametrize("seed", range(20))
def test_counts_agree_with_a_scan_of_all_members(seed: int) -> None:
    chance = random.Random(seed)
    gang = Gang(plan_of("worker:0", "worker:1", "worker:2", "ps:0", "evaluator:0"))
    for now in range(60):
        chance.choice(CHANGES)(gang, chance.choice([*gang]), float(now))
        members = [*gang]
        living = [m for m in members if m.is_running or m.is_awaited]
        waiting = [m.waits_since for m in gang.core() if m.is_running and m.waits_for_peers]
        assert gang.running() == [m for m in members if m.is_running]
        assert gang.member_counts.waits_since() == min(filter(None, waiting), default=None)
        assert {
            standing.answer_by for standing in gang.member_counts.standings() if standing.may_run
        } == {m.answer_by for m in living}
        for is_gang in (True, False):
            every = [member.end() for member in members]
            assert judge(gang.ends(CHIEF), chief=CHIEF, gang=is_gang) is judge(
                every, chief=CHIEF, gang=is_gang
            )


def test_the_cost_of_an_event_does_not_depend_on_the_size_of_the_gang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The events include the start, reports, a crash and the end of the last survivor."""
    assert _evaluations_per_task(300, monkeypatch) <= _evaluations_per_task(10, monkeypatch) * 1.1


def _evaluations_per_task(size: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return how often a standing or an end is evaluated per task."""
    evaluations = 0
    standing_of, end = member_counts.standing_of, Member.end

    def counted(member: Member) -> Any:
        nonlocal evaluations
        evaluations += 1
        return standing_of(member)

    def counted_end(member: Member) -> Any:
        nonlocal evaluations
        evaluations += 1
        return end(member)

    with monkeypatch.context() as patch:
        patch.setattr(member_counts, "standing_of", counted)
        patch.setattr(Member, "end", counted_end)
        names = [f"worker:{index}" for index in range(size)]
        replay = replay_of(*names)
        for kind in ("waiting_for_peers", "ready", "progress"):
            for name in names:
                replay.says(name, kind, step=1)
        replay.exits(names[-1], 1).ended(*names[:-1])
    return evaluations / size
