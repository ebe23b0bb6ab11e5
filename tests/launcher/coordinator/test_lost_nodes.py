"""Agents are lost at any moment, tried again while attempts are left, and taken in by a gang."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tfcluster.agent import protocol
from tfcluster.plans.plan import NodePlan, TaskId
from tfcluster.rundir import control
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.states import Status
from tfcluster.wire.agent_link import AgentLink, ByteStreams

from .scripted import LOCAL, REMOTE, Agent, Ended, FakeNodes, Frame, perform, plan_on_two_nodes

INDEX_END = struct.pack("<Q", 0xDB4775248B80FB57)
FOREVER_S = 1e12


@dataclass
class Host(Agent):
    """The agent of a host whose power fails; a new agent answers once the host is on again."""

    fails: tuple[str, ...] = ()
    """The moments at which its power fails, one after the other."""
    off_s: float = 200.0
    """The time for which the host is off: by default much longer than its lease."""
    off_until: float = 0.0
    is_mute: bool = False
    lasts: tuple[int, ...] = ()
    """The attempts in which its tasks run until they are stopped."""
    saves_to: Path | None = None
    """Where its task saves every second, in the attempts that last."""
    hangs: bool = False
    """Dials neither fail nor succeed."""
    is_dialled: bool = False
    dials: list[float] = field(default_factory=list)
    """The times of the dials since the host was off for the first time."""
    when_off: Agent | None = None
    """An agent whose task is killed 10 s after: the peers notice the loss first."""

    async def dial(self) -> ByteStreams:
        now = asyncio.get_running_loop().time()
        if self.hangs:
            self.is_dialled = True
            try:
                await asyncio.sleep(10_000)
            finally:
                self.is_dialled = False
        if self.off_until:
            self.dials.append(now)
            if now < self.off_until:
                raise ConnectionRefusedError("the machine is off")
            self.session, self.is_mute = protocol.Session(), False
            self.running.clear()
        return await super().dial()

    def deliver(self, moment: str) -> None:
        super().deliver(moment)
        if self.fails and self.fails[0] == moment:
            self.fails = self.fails[1:]
            self.turn_off()

    def turn_off(self) -> None:
        assert self.writer is not None
        self.off_until = asyncio.get_running_loop().time() + self.off_s
        self.writer.close()
        if self.when_off is not None:
            asyncio.get_running_loop().call_later(10, self.when_off.exit, "worker:0")

    def say(self, message: Any) -> None:
        if not self.is_mute:
            super().say(message)

    def _start(self, attempt: int, tasks: Sequence[str]) -> None:
        if attempt not in self.lasts:
            super()._start(attempt, tasks)
            return
        for task in tasks:
            self.running[task] = attempt
            self.say({"type": "task_started", "task": task, "attempt": attempt, "pid": 7})
        if self.saves_to is not None:
            self.serving.append(asyncio.create_task(self._save(attempt, self.saves_to)))

    async def _save(self, attempt: int, folder: Path) -> None:
        number = 100 * attempt
        while self.running:
            await asyncio.sleep(1)
            number += 1
            save(folder, f"ckpt-{number}")

    def exit(self, task: str, **how: Any) -> None:
        if task in self.running:  # it may have been stopped meanwhile
            super().exit(task, **(how or {"signal": 9}))


def save(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.data-00000-of-00001").write_bytes(b"x")
    (folder / f"{name}.index").write_bytes(INDEX_END)


@dataclass
class Mute(Host):
    """An agent that lives, but does not answer any more, where others lose their power."""

    def turn_off(self) -> None:
        self.is_mute, self.off_until = True, 0.1


class Scene:
    """A gang of two, with one worker on a host."""

    def __init__(self, paths: RunPaths, tmp_path: Path) -> None:
        self.paths, self.tmp_path = paths, tmp_path
        self.remote = Host(REMOTE, str(tmp_path))
        self.local = Host(LOCAL, str(tmp_path))

    def saves(self, *attempts: int) -> None:
        self.local.lasts = attempts
        self.local.saves_to = self.paths.task_checkpoints(TaskId("worker", 0))

    def play(self, **supervision: Any) -> Ended:
        plan = plan_on_two_nodes(self.tmp_path, **{"run_deadline_s": 3600.0, **supervision})
        return perform(plan, {LOCAL: self.local, REMOTE: self.remote}, self.paths)

    def grow(self, **supervision: Any) -> list[str]:
        """Let the gang grow again; return the reasons of its restarts."""
        ended = self.play(min_workers=1, grow_every_s=5.0, **supervision)
        assert ended.outcome.status is Status.SUCCEEDED
        assert {task.state for task in ended.state.tasks} == {"succeeded"}
        return [str(event["reason"]) for event in ended.state.restarts]


@pytest.fixture
def scene(paths: RunPaths, tmp_path: Path) -> Scene:
    return Scene(paths, tmp_path)


LAST_WORDS: dict[str, Sequence[Frame]] = {
    "none": [],
    "guard_lost": [{"type": "guard_lost"}],
    "agent_ending": [{"type": "agent_ending", "signal": 15}],
    "refused": [{"type": "refused", "reason": "no room"}],
}


@pytest.mark.parametrize("last", [*LAST_WORDS, "mute"])
@pytest.mark.parametrize(
    ("moment", "status", "attempts"),
    [
        ("ports", Status.FAILED, 0),
        ("put back", Status.SUCCEEDED, 2),
        ("start", Status.SUCCEEDED, 2),
    ],
)
def test_an_agent_may_be_lost_at_any_moment_before_its_tasks_run(
    scene: Scene, moment: str, status: Status, attempts: int, last: str
) -> None:
    """The moment `put back` is the restore of `--resume`, which takes minutes for large files."""
    kind = Mute if last == "mute" else Host
    script = {moment: LAST_WORDS.get(last, [])}
    scene.local = kind(LOCAL, str(scene.tmp_path), script, fails=(moment,), off_s=0.0)
    ended = scene.play(backoff_s=0.0)
    assert (ended.outcome.status, ended.state.attempt) == (status, attempts)


def test_a_run_fails_if_each_new_agent_dies_before_it_holds_its_ports(scene: Scene) -> None:
    scene.local.fails, scene.local.off_s = ("start", *["ports"] * 9), 0.0
    scene.remote.lasts = (1,)
    ended = scene.play(max_restarts=3, backoff_s=0.0)
    assert (ended.outcome.status, ended.outcome.exit_code) == (Status.FAILED, 3)
    assert len(ended.state.restarts) == 3, "all restarts are used up"


# -- reaching a lost host again


@pytest.mark.parametrize(
    ("off_s", "is_noticed", "lease_s", "most_s"),
    [(90.0, False, 60.0, 400), (200.0, False, 60.0, 400), (91.0, True, 3600.0, 300)],
    ids=["within the next minute", "after minutes", "long before its lease ends"],
)
def test_a_host_that_was_off_is_part_of_the_next_attempt(
    scene: Scene, off_s: float, is_noticed: bool, lease_s: float, most_s: float
) -> None:
    """A host that was up again, which proves the end of its tasks, once waited for its lease."""
    scene.remote.fails, scene.remote.off_s, scene.local.lasts = ("started",), off_s, (1,)
    scene.remote.when_off = scene.local if is_noticed else None
    ended = scene.play(lease_s=lease_s, max_restarts=3)
    assert ended.outcome.status is Status.SUCCEEDED
    assert {task.attempt for task in ended.state.tasks} == {2}
    assert ended.seconds < most_s
    assert f"waiting for the lease of {REMOTE}" in ended.paths.events.read_text()


def test_each_minute_without_an_answer_is_an_attempt_and_the_last_one_ends_the_run(
    scene: Scene,
) -> None:
    scene.remote.fails, scene.remote.off_s, scene.local.lasts = ("started",), FOREVER_S, (1,)
    ended = scene.play(lease_s=60.0, max_restarts=3)
    assert (ended.outcome.status, ended.outcome.exit_code) == (Status.FAILED, 3)
    assert [event["of"] for event in ended.state.restarts] == [4, 3, 2]
    assert "the machine is off" in str(ended.outcome.error)
    assert "supervision.max_restarts = 3 is used up" in str(ended.outcome.error)
    assert 240 < ended.seconds < 400
    dials = scene.remote.dials
    assert max(later - sooner for sooner, later in itertools.pairwise(dials)) < 40


@pytest.mark.parametrize("least", [1, 2])
def test_a_gang_that_may_shrink_starts_without_a_host_that_is_off(scene: Scene, least: int) -> None:
    """`torchrun --nnodes 1:2` starts, too."""
    scene.remote.off_until = FOREVER_S
    ended = scene.play(min_workers=least)
    if least == 2:
        assert ended.outcome.exit_code == 3
        return
    assert ended.outcome.status is Status.SUCCEEDED
    assert [task.state for task in ended.state.tasks] == ["succeeded", "lost"]
    warning = f"starting with 1 of 2 workers, without worker:1: {REMOTE} cannot be reached"
    assert ended.state.warnings[0] == warning


@dataclass
class Fragile(Agent):
    """An agent whose connections break for 100 s as soon as both sides have said hello."""

    until: float = 0.0

    def _hear(self, message: dict[str, Any]) -> None:
        super()._hear(message)
        now = asyncio.get_running_loop().time()
        if self.running and now < self.until and message["type"] == "hello":
            assert self.writer is not None
            self.writer.close()

    def _start(self, attempt: int, tasks: Sequence[str]) -> None:
        loop = asyncio.get_running_loop()
        assert self.writer is not None
        self.until = loop.time() + 100
        loop.call_later(1, self.writer.close)
        for task in tasks:
            self.running[task] = attempt
            self.say({"type": "task_started", "task": task, "attempt": attempt, "pid": 7})
            loop.call_later(120, partial(self.exit, task, exit_code=0))


def test_the_end_of_a_run_waits_a_minute_at_most_for_another_place_of_its_chief(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod may wait for its place for ever, and then has none of the files of the lost one."""
    original, seen = FakeNodes.connect, list[str]()

    async def connect(self: FakeNodes, node: NodePlan, **how: Any) -> AgentLink:
        seen.append(node.name)
        if seen.count(node.name) > 1:
            await asyncio.sleep(10_000)
        return await original(self, node, **how)

    monkeypatch.setattr(FakeNodes, "connect", connect)
    saved = {"type": "saved", "path": "/elsewhere/ckpt-5.index", "step": 5}
    event = {"type": "task_event", "task": "worker:0", "attempt": 1, "event": saved}
    scene.remote.fails, scene.remote.script = ("trained",), {"trained": [event]}
    scene.local.lasts = (1,)
    plan = plan_on_two_nodes(scene.tmp_path, remote_is_chief=True, max_restarts=0)
    ended = perform(plan, {LOCAL: scene.local, REMOTE: scene.remote}, scene.paths)
    assert ended.outcome.status is Status.FAILED
    assert seen.count(REMOTE) == 2, "it was tried once more: it has saved something"
    assert ended.seconds < 300


def test_a_link_that_breaks_after_each_reconnection_is_dialled_less_and_less_often(
    paths: RunPaths, tmp_path: Path
) -> None:
    """It was dialled 11 times a second, with an event each time, for as long as the run lasted."""
    remote = Fragile(REMOTE, str(tmp_path))
    plan = plan_on_two_nodes(tmp_path, lease_s=60.0, finish_grace_s=900.0, run_deadline_s=None)
    ended = perform(plan, {LOCAL: Agent(LOCAL, str(tmp_path)), REMOTE: remote}, paths)
    assert ended.outcome.status is Status.SUCCEEDED
    assert {task.attempt for task in ended.state.tasks} == {1}
    assert 100 / 6 < remote.connections < 100 / 3


# -- growing

GROWN = "worker:1 is back: growing to 2 workers"


@pytest.mark.parametrize("fails", [("started",), ("started", "ports")])
def test_a_gang_grows_when_a_new_agent_of_its_lost_host_is_set_up(
    scene: Scene, fails: tuple[str, ...]
) -> None:
    scene.saves(1, 2)
    scene.remote.fails = fails
    assert scene.grow()[-1] == GROWN
    assert scene.local.order_counts["start"] == 3


def test_a_restart_does_not_wait_for_a_node_that_is_tried_in_the_background(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled: list[bool] = []
    original = Host._start

    def start(self: Host, attempt: int, tasks: Sequence[str]) -> None:
        original(self, attempt, tasks)
        if self is scene.local:
            dialled.append(scene.remote.is_dialled)
            if attempt == 2:
                scene.remote.hangs = True
                asyncio.get_running_loop().call_later(120, self.exit, "worker:0")

    monkeypatch.setattr(Host, "_start", start)
    scene.saves(1, 2)
    scene.remote.fails = ("started",)
    ended = scene.play(min_workers=1, max_restarts=2)
    assert ended.outcome.status is Status.SUCCEEDED
    assert dialled == [False, False, True], "the third start did not wait for the dial"
    assert not scene.remote.is_dialled, "the end of the run cancels the dial"


def test_a_request_over_the_control_socket_changes_the_number_of_workers(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[str] = []
    original = Host._start

    def start(self: Host, attempt: int, tasks: Sequence[str]) -> None:
        original(self, attempt, tasks)
        if self is scene.local and attempt < 3:
            self.serving.append(asyncio.create_task(ask(attempt)))

    async def ask(workers: int) -> None:
        await asyncio.sleep(30)
        answer = await asyncio.to_thread(control.scale_to, scene.paths.control_socket, workers)
        answers.append(answer)

    monkeypatch.setattr(Host, "_start", start)
    scene.saves(1, 2)
    scene.remote.lasts = (1, 2)
    ended = scene.play()
    assert ended.outcome.status is Status.SUCCEEDED
    assert answers == [
        "restarting with 1 worker from the newest checkpoint, worker:1 out",
        "restarting with 2 workers from the newest checkpoint, worker:1 in",
    ]
    assert [agent.order_counts["start"] for agent in (scene.local, scene.remote)] == [3, 2]
