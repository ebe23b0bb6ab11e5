"""Restarts are correct when nodes are lost, or the run is stopped, between their steps."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.launcher.supervision.story import Replay, replay_of

from tfcluster.agent import catalogue as msg
from tfcluster.coordinator import loop
from tfcluster.coordinator.attempts import Attempts
from tfcluster.coordinator.launch import Launch
from tfcluster.coordinator.loop import Loop, RunOver
from tfcluster.coordinator.lost_nodes import LostNodes
from tfcluster.coordinator.startup import Startup
from tfcluster.kinds import Capabilities
from tfcluster.nodes.hub import Hub
from tfcluster.nodes.orders import Answers
from tfcluster.nodes.sites import Site, site_of
from tfcluster.plans.plan import TaskId
from tfcluster.preflight import probes
from tfcluster.rundir.events import Event
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.states import Status
from tfcluster.supervision.decisions import StopRequest
from tfcluster.supervision.supervisor import Supervisor


class FakeHub(Hub):
    """A hub without links, which records the types of sent messages."""

    def __init__(self, paths: RunPaths) -> None:
        super().__init__(paths)
        self._here = paths
        self.sent: list[str] = []

    def send(self, node: str, order: msg.Order) -> None:
        self.sent.append(order.type)

    def site(self, node: str) -> Site:
        return site_of(node, self._here, msg.Welcome(pid=5, guard_pid=6))

    def put_call(self, call: Callable[[], object]) -> None:
        """Queue the call for the coordinator's loop."""
        self.put(lambda: ignore(call()))


def ignore(value: object) -> None:
    """Return None, as calls of the loop must."""


class FakeGathering:
    """A gathering that copies nothing."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.has_missed = False

    async def put_state_back(self, tasks: Iterable[TaskId]) -> int | None:
        self.calls.append("put back")
        return None

    async def gather_latest(self, *, others_train: bool = False) -> list[Event]:
        self.calls.append("gather latest")
        return []

    def take_events(self) -> list[Event]:
        return []

    def follow_chief(self, chief: TaskId) -> None:
        self.calls.append(f"follow {chief}")


class Scene:
    """The attempts of a supervisor with the given history."""

    def __init__(self, history: Replay, tmp_path: Path) -> None:
        self.history, self.supervisor = history, history.supervisor
        paths = self.paths = RunPaths(tmp_path)
        self.hub, self.run_gathering = FakeHub(paths), FakeGathering()
        self.recorded: list[Event] = []
        run_writer: Any = SimpleNamespace(
            wait_for=ignore, keep_up=lambda: None, wake_s=None, record=self.recorded.append
        )
        self.loop = Loop(
            self.hub, self.supervisor, run_writer, lambda: ignore(self.supervisor.take_orders())
        )
        launch, until = Launch(history.plan, {}), self.loop.until
        self.startup = Startup(launch, paths, self.hub, run_writer, until, announce=ignore)
        run_gathering: Any = self.run_gathering
        self.lost_nodes = LostNodes(self.supervisor, self.startup, self.loop)
        self.attempts = Attempts(
            self.supervisor, self.startup, self.lost_nodes, self.loop, run_gathering
        )

    def play(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do the work within seconds, or until the run is over."""

        async def within_seconds() -> None:
            async with asyncio.timeout(30):
                with contextlib.suppress(RunOver):
                    await self.loop.run(work())

        asyncio.run(within_seconds())


def test_a_chief_that_restarts_alone_continues_from_its_last_save(tmp_path: Path) -> None:
    history = replay_of(kind="plain", backoff_s=0.0)
    history.exits("worker:0", killed=signal.SIGKILL).after(0.1)
    scene = Scene(history, tmp_path)
    order: Any = history.orders[-1]
    with pytest.raises(KeyError):  # raised at the start order, since there is no agent
        scene.play(lambda: scene.attempts._restart_alone(order))
    assert scene.run_gathering.calls == ["gather latest", "put back"]


@pytest.mark.parametrize("again", ["drop", "dismiss"])
def test_a_second_end_of_a_link_waits_until_its_agent_has_ended(tmp_path: Path, again: str) -> None:
    """The loss of a node may coincide with another sign of it, or with the end of the run."""
    hub, steps = FakeHub(RunPaths(tmp_path)), list[str]()

    async def close(**_: object) -> None:
        await asyncio.sleep(0.05)
        steps.append("ended")

    async def end_twice() -> None:
        dropping = asyncio.create_task(hub.drop("local"))
        await asyncio.sleep(0)
        dismiss = hub._dismiss("local", keeps_folders=False)
        await (hub.drop("local") if again == "drop" else dismiss)
        steps.append("free")
        await dropping
        dismiss.close()

    hub._links["local"] = cast("Any", SimpleNamespace(heard_at=0.0, has_ended=True, close=close))
    asyncio.run(end_twice())
    assert (steps, hub._links) == (["ended", "free"], {})


def test_a_stopped_coordinator_reads_messages_before_it_checks_deadlines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All deadlines are due at once after Ctrl-Z and `fg`, while answers are still unread."""
    monkeypatch.setattr(loop, "_LATE_S", 0.1)
    history = replay_of(run_deadline_s=1.0)
    scene = Scene(history, tmp_path)

    async def work() -> None:
        now = asyncio.get_running_loop().time()
        history.supervisor.begin_run(now)
        asyncio.get_running_loop().call_later(0.01, time.sleep, 1.5)  # blocks the loop
        finish = [partial(history.exits, task) for task in ("worker:0", "worker:1")]
        for call in finish:  # queued by the link once the loop runs again
            asyncio.get_running_loop().call_later(1.6, scene.hub.put_call, call)
        await scene.loop.pause(now + 60)

    scene.play(work)
    assert history.outcome() == (Status.SUCCEEDED, 0)


def test_ctrl_c_ends_a_run_whose_preflight_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preflight hangs for a folder on a dead NFS server or a name that no server resolves."""
    dead = threading.Event()
    monkeypatch.setattr(probes, "probe_this_node", lambda plan, nodes: dead.wait(60))
    history = replay_of()
    history.supervisor = Supervisor(history.plan)  # nothing has started
    history.supervisor.begin_run(history.now)
    scene = Scene(history, tmp_path)

    async def work() -> None:
        scene.hub.put_call(lambda: scene.supervisor.stop(StopRequest("Ctrl-C", 130), history.now))
        answers = Answers(scene.hub, scene.loop.until)
        await scene.startup.preflight(history.plan.nodes, answers)

    scene.play(work)
    assert history.outcome()[1] == 130
    dead.set()


def test_only_nodes_that_were_reached_are_checked_before_the_start(tmp_path: Path) -> None:
    """A gang that may shrink starts without the others, which used to fail the check."""
    scene = Scene(replay_of(), tmp_path)
    startup, (local,) = scene.attempts.startup, scene.history.plan.nodes
    startup.plan = replace(startup.plan, nodes=(local, replace(local, name="10.0.0.9")))

    async def work() -> None:
        await startup.preflight([local], Answers(scene.hub, scene.loop.until))
        assert json.loads(scene.paths.preflight.read_text())["nodes"] == ["local"]

    scene.play(work)


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_dropped_node_that_has_ended_has_no_lease_to_wait_for(
    tmp_path: Path, has_ended: bool
) -> None:
    """A removed container has ended; the agent of a host that does not answer may still run."""
    hub = FakeHub(RunPaths(tmp_path))
    link: Any = SimpleNamespace(heard_at=100.0, has_ended=has_ended, close=_closed)
    hub._links["far"] = link
    hub._capabilities["far"] = Capabilities()
    asyncio.run(hub.drop("far"))
    assert hub.fenced_until("far") == (0.0 if has_ended else pytest.approx(171.0))


async def _closed() -> None:
    """Close nothing."""
