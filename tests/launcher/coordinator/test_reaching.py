"""A lost node is tried again and again: while its lease lasts, and as long as attempts are left."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tfcluster.agent import protocol
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.states import Status
from tfcluster.wire.link import Streams

from .scripted import LOCAL, REMOTE, Agent, Ended, perform, plan_on_two_nodes


@dataclass
class Rebooting(Agent):
    """The agent of a host that is down for a while, and then has a new agent."""

    down_s: float = 0.0
    down_until: float = 0.0
    other: Agent | None = None
    """An agent whose task is killed when this one's host goes down: its peers notice it first."""
    dials: list[float] = field(default_factory=list)
    """The times of all dials since the host went down."""

    async def dial(self) -> Streams:
        now = asyncio.get_running_loop().time()
        if self.down_until:
            self.dials.append(now)
            if now < self.down_until:
                raise ConnectionRefusedError("the machine is off")
            self.session = protocol.Session()
        return await super().dial()

    def _start(self, attempt: int, tasks: Sequence[str]) -> None:
        if self.down_until:
            super()._start(attempt, tasks)
            return
        for task in tasks:
            self.say({"type": "task_started", "task": task, "attempt": attempt, "pid": 7})
        self.down_until = asyncio.get_running_loop().time() + self.down_s
        assert self.writer is not None
        self.writer.close()
        if self.other is not None:
            asyncio.get_running_loop().call_later(10, self.other.exit, "worker:0")


@dataclass
class Waiting(Agent):
    """The agent of a node whose task runs until it is stopped in the first attempt."""

    def _start(self, attempt: int, tasks: Sequence[str]) -> None:
        if attempt > 1:
            super()._start(attempt, tasks)
            return
        for task in tasks:
            self.running[task] = attempt
            self.say({"type": "task_started", "task": task, "attempt": attempt, "pid": 7})

    def exit(self, task: str, **how: Any) -> None:
        if task in self.running:  # it may have been stopped meanwhile
            super().exit(task, **(how or {"signal": 9}))


def play(
    tmp_path: Path, down_s: float, *, is_noticed: bool = False, **policy: Any
) -> tuple[Ended, Rebooting]:
    paths = RunPaths(tmp_path / "runs" / "run")
    paths.root.mkdir(parents=True)
    local = Waiting(LOCAL, str(tmp_path))
    remote = Rebooting(REMOTE, str(tmp_path), down_s=down_s, other=local if is_noticed else None)
    limits = {"lease_s": 60.0, "max_restarts": 3, "run_deadline_s": None, **policy}
    plan = plan_on_two_nodes(tmp_path, **limits)
    return perform(plan, {LOCAL: local, REMOTE: remote}, paths), remote


@pytest.mark.parametrize("down_s", [90.0, 200.0])
def test_a_host_that_is_down_for_minutes_is_part_of_the_next_attempt(
    tmp_path: Path, down_s: float
) -> None:
    """A cut link of 90 s used to end the run: after the lease of 60 s the host was tried once."""
    ended, _ = play(tmp_path, down_s)
    assert ended.outcome.status is Status.SUCCEEDED
    assert {task.attempt for task in ended.state.tasks} == {2}


def test_each_minute_without_an_answer_is_an_attempt_and_the_last_one_ends_the_run(
    tmp_path: Path,
) -> None:
    ended, remote = play(tmp_path, 100_000.0)
    assert (ended.outcome.status, ended.outcome.exit_code) == (Status.FAILED, 3)
    assert len(ended.state.restarts) == 3
    assert [event["of"] for event in ended.state.restarts] == [4, 3, 2]
    assert ended.outcome.error is not None
    assert "the machine is off" in ended.outcome.error.message
    assert "supervision.max_restarts = 3 is used up" in ended.outcome.error.message
    assert 240 < ended.seconds < 400
    gaps = [later - sooner for sooner, later in zip(remote.dials, remote.dials[1:], strict=False)]
    assert max(gaps) < 40


def test_a_gang_that_may_shrink_does_not_wait_for_a_lost_host(tmp_path: Path) -> None:
    ended, _ = play(tmp_path, 100_000.0, min_workers=1)
    assert ended.outcome.status is Status.SUCCEEDED
    assert ended.state.restarts[-1]["members"] == ("worker:0",)
    assert ended.seconds < 60 + 11 + 30, "it is tried once after its lease"


def test_a_host_is_tried_again_long_before_its_lease_ends(tmp_path: Path) -> None:
    """A host that was up again after 91 s, which proves the end of its tasks, waited an hour."""
    ended, _ = play(tmp_path, 91.0, is_noticed=True, lease_s=3600.0)
    assert ended.outcome.status is Status.SUCCEEDED
    assert ended.seconds < 300


@dataclass
class Fragile(Agent):
    """An agent whose connections break as soon as both sides have said hello."""

    until: float = 0.0
    """The time after which connections hold."""

    def _hear(self, message: dict[str, Any]) -> None:
        super()._hear(message)
        now = asyncio.get_running_loop().time()
        if self.running and now < self.until and message["type"] == "hello":
            assert self.writer is not None
            self.writer.close()

    def _start(self, attempt: int, tasks: Sequence[str]) -> None:
        for task in tasks:
            self.running[task] = attempt
            self.say({"type": "task_started", "task": task, "attempt": attempt, "pid": 7})
        loop = asyncio.get_running_loop()
        self.until = loop.time() + 100
        assert self.writer is not None
        loop.call_later(1, self.writer.close)
        for task in tasks:
            loop.call_later(120, partial(self.exit, task, exit_code=0))


def test_a_link_that_breaks_after_each_reconnection_is_dialled_less_and_less_often(
    tmp_path: Path,
) -> None:
    """It was dialled 11 times a second, with an event each time, for as long as the run lasted."""
    paths = RunPaths(tmp_path / "runs" / "run")
    paths.root.mkdir(parents=True)
    remote = Fragile(REMOTE, str(tmp_path))
    plan = plan_on_two_nodes(tmp_path, lease_s=60.0, finish_grace_s=900.0, run_deadline_s=None)
    ended = perform(plan, {LOCAL: Agent(LOCAL, str(tmp_path)), REMOTE: remote}, paths)
    assert ended.outcome.status is Status.SUCCEEDED
    assert {task.attempt for task in ended.state.tasks} == {1}
    assert 100 / 6 < remote.connections < 100 / 3


@dataclass
class Late(Agent):
    """The agent of a host that is down at the start, and for a while after it."""

    up_at: float = 0.0

    async def dial(self) -> Streams:
        if asyncio.get_running_loop().time() < self.up_at:
            raise ConnectionRefusedError("the machine is off")
        return await super().dial()


@pytest.mark.parametrize("least", [1, 2])
def test_a_gang_that_may_shrink_starts_without_a_host_that_is_down(
    tmp_path: Path, least: int
) -> None:
    """It used to end with exit code 3; `torchrun --nnodes 1:2` starts."""
    paths = RunPaths(tmp_path / "runs" / "run")
    paths.root.mkdir(parents=True)
    local, remote = Agent(LOCAL, str(tmp_path)), Late(REMOTE, str(tmp_path), up_at=1e12)
    plan = plan_on_two_nodes(tmp_path, min_workers=least)
    ended = perform(plan, {LOCAL: local, REMOTE: remote}, paths)
    if least == 2:
        assert ended.outcome.exit_code == 3
        return
    assert ended.outcome.status is Status.SUCCEEDED
    assert {task.task: task.state for task in ended.state.tasks} == {
        "worker:0": "succeeded",
        "worker:1": "lost",
    }
    warning = f"starting with 1 of 2 workers, without worker:1: {REMOTE} cannot be reached"
    assert ended.state.warnings[0] == warning
