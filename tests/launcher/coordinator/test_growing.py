"""A lost node is tried again in the background, and the gang grows; a request changes its size."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tfcluster.agent import protocol
from tfcluster.plans.plan import TaskId
from tfcluster.rundir import control
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.states import Status
from tfcluster.wire.link import Streams

from .scripted import LOCAL, REMOTE, Agent, Ended, perform, plan_on_two_nodes

INDEX_END = struct.pack("<Q", 0xDB4775248B80FB57)
DOWN_S = 200.0
"""The time for which the remote node is off: much longer than its lease."""


@dataclass
class Trainer(Agent):
    """The agent of the chief's node: its task saves every second in all attempts but the last."""

    folder: Path = Path()
    last: int = 3
    saves: bool = True

    def _start(self, attempt: int, tasks: Sequence[str]) -> None:
        if attempt >= self.last:
            super()._start(attempt, tasks)
            return
        for task in tasks:
            self.running[task] = attempt
            self.say({"type": "task_started", "task": task, "attempt": attempt, "pid": 7})
        self.serving.append(asyncio.create_task(self._save(attempt)))

    async def _save(self, attempt: int) -> None:
        number = 100 * attempt
        while self.running and self.saves:
            await asyncio.sleep(1)
            number += 1
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / f"ckpt-{number}.data-00000-of-00001").write_bytes(b"x")
            (self.folder / f"ckpt-{number}.index").write_bytes(INDEX_END)


@dataclass
class Flaky(Agent):
    """The agent of a node whose power fails after the first start; a new one answers later."""

    down_until: float = 0.0
    is_down_at_first: bool = False
    dies_again: bool = False
    """The first new agent is lost while it is asked to hold its ports."""
    hangs: bool = False
    """Dials neither fail nor succeed."""
    is_dialled: bool = False
    new_agents: int = 0

    async def dial(self) -> Streams:
        now = asyncio.get_running_loop().time
        if self.hangs:
            self.is_dialled = True
            try:
                await asyncio.sleep(10_000)
            finally:
                self.is_dialled = False
        if self.is_down_at_first and not self.down_until:
            self.down_until = now() + DOWN_S
        if now() < self.down_until:
            raise ConnectionRefusedError("the machine is off")
        if self.down_until:
            self.session, self.new_agents = protocol.Session(), self.new_agents + 1
        return await super().dial()

    def _obey(self, order: dict[str, Any]) -> None:
        if order["type"] == "hold_ports" and self.dies_again and self.new_agents == 1:
            self._fail()
        else:
            super()._obey(order)

    def _start(self, attempt: int, tasks: Sequence[str]) -> None:
        if self.down_until:
            super()._start(attempt, tasks)
            return
        for task in tasks:
            self.say({"type": "task_started", "task": task, "attempt": attempt, "pid": 7})
        self._fail()

    def _fail(self) -> None:
        """Have the power fail."""
        assert self.writer is not None
        self.down_until = asyncio.get_running_loop().time() + DOWN_S
        self.writer.close()


def play(
    tmp_path: Path, local: dict[str, Any], remote: dict[str, Any], **supervision: Any
) -> tuple[Ended, Trainer, Flaky]:
    paths = RunPaths(tmp_path / "runs" / "run")
    paths.root.mkdir(parents=True)
    folder = paths.task_checkpoints(TaskId("worker", 0))
    trainer = Trainer(LOCAL, str(tmp_path), folder=folder, **local)
    flaky = Flaky(REMOTE, str(tmp_path), **remote)
    policy = {"min_workers": 1, "grow_every_s": 5.0, "run_deadline_s": 3600.0, **supervision}
    ended = perform(plan_on_two_nodes(tmp_path, **policy), {LOCAL: trainer, REMOTE: flaky}, paths)
    return ended, trainer, flaky


def reasons(ended: Ended) -> list[str]:
    return [str(event["reason"]) for event in ended.state.restarts]


GROWN = "worker:1 is back: growing to 2 workers"


def test_a_gang_grows_when_its_lost_node_answers_again(tmp_path: Path) -> None:
    ended, trainer, flaky = play(tmp_path, {}, {})
    assert ended.outcome.status is Status.SUCCEEDED
    assert reasons(ended)[-1] == GROWN
    assert ended.state.restarts[-2]["members"] == ("worker:0",)
    assert (trainer.order_counts["start"], flaky.order_counts["start"]) == (3, 2)
    assert ended.state.nodes[REMOTE] == "gone"
    assert {task.state for task in ended.state.tasks} == {"succeeded"}


def test_a_gang_takes_in_a_host_that_was_down_at_its_start(tmp_path: Path) -> None:
    ended, trainer, flaky = play(tmp_path, {"last": 2}, {"is_down_at_first": True})
    assert ended.outcome.status is Status.SUCCEEDED
    assert (reasons(ended), ended.state.attempt) == ([GROWN], 2)
    assert (trainer.order_counts["start"], flaky.order_counts["start"]) == (2, 1)
    assert {task.state for task in ended.state.tasks} == {"succeeded"}


def test_a_new_agent_that_is_lost_while_it_is_set_up_is_replaced(tmp_path: Path) -> None:
    ended, _, flaky = play(tmp_path, {}, {"dies_again": True})
    assert ended.outcome.status is Status.SUCCEEDED
    assert (reasons(ended)[-1], flaky.new_agents) == (GROWN, 2)


def test_a_gang_without_checkpoints_does_not_grow(tmp_path: Path) -> None:
    ended, _, flaky = play(tmp_path, {"saves": False}, {}, run_deadline_s=600.0)
    assert ended.outcome.status is Status.TIMED_OUT
    assert GROWN not in reasons(ended)
    assert flaky.new_agents == 1


def test_a_restart_does_not_wait_for_a_node_that_is_tried_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled: list[bool] = []
    original = Trainer._start

    def start(self: Trainer, attempt: int, tasks: Sequence[str]) -> None:
        dialled.append(remote.is_dialled)
        original(self, attempt, tasks)
        if attempt == 2:
            remote.hangs = True
            asyncio.get_running_loop().call_later(120, lambda: self.exit("worker:0", signal=9))

    monkeypatch.setattr(Trainer, "_start", start)
    remote = Flaky(REMOTE, str(tmp_path))
    paths = RunPaths(tmp_path / "runs" / "run")
    paths.root.mkdir(parents=True)
    trainer = Trainer(LOCAL, str(tmp_path), folder=paths.task_checkpoints(TaskId("worker", 0)))
    plan = plan_on_two_nodes(tmp_path, min_workers=1, max_restarts=2, run_deadline_s=3600.0)
    ended = perform(plan, {LOCAL: trainer, REMOTE: remote}, paths)
    assert ended.outcome.status is Status.SUCCEEDED
    assert dialled == [False, False, True], "the third start did not wait for the dial"
    assert not remote.is_dialled, "the end of the run cancels the dial"


def test_a_request_over_the_control_socket_changes_the_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[str] = []
    original = Trainer._start

    def start(self: Trainer, attempt: int, tasks: Sequence[str]) -> None:
        original(self, attempt, tasks)
        if attempt < self.last:
            self.serving.append(asyncio.create_task(ask(1 if attempt == 1 else 2)))

    async def ask(workers: int) -> None:
        await asyncio.sleep(30)
        answers.append(await asyncio.to_thread(control.scale_to, paths.control_socket, workers))

    monkeypatch.setattr(Trainer, "_start", start)
    paths = RunPaths(tmp_path / "runs" / "run")
    paths.root.mkdir(parents=True)
    trainers = {
        LOCAL: Trainer(LOCAL, str(tmp_path), folder=paths.task_checkpoints(TaskId("worker", 0))),
        REMOTE: Staying(REMOTE, str(tmp_path)),
    }
    ended = perform(plan_on_two_nodes(tmp_path, run_deadline_s=3600.0), trainers, paths)
    assert ended.outcome.status is Status.SUCCEEDED
    assert answers == [
        "restarting with 1 worker from the newest checkpoint, worker:1 out",
        "restarting with 2 workers from the newest checkpoint, worker:1 in",
    ]
    assert reasons(ended) == ["scaling to 1 worker", "scaling to 2 workers"]
    assert [trainers[node].order_counts["start"] for node in (LOCAL, REMOTE)] == [3, 2]


@dataclass
class Staying(Agent):
    """An agent whose task runs until it is stopped, but for the third attempt."""

    def _start(self, attempt: int, tasks: Sequence[str]) -> None:
        if attempt == 3:
            super()._start(attempt, tasks)
            return
        for task in tasks:
            self.running[task] = attempt
            self.say({"type": "task_started", "task": task, "attempt": attempt, "pid": 7})
