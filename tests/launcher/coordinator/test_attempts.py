"""Restarts are correct when nodes are lost, or the run is stopped, between their steps."""

from __future__ import annotations

import asyncio
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
from tfcluster.coordinator.loop import Loop, RunOver
from tfcluster.coordinator.starter import Launch
from tfcluster.coordinator.startup import Startup
from tfcluster.errors import NodeLostError
from tfcluster.kinds import Capabilities
from tfcluster.node_loss import NodeLoss
from tfcluster.nodes.hub import Hub
from tfcluster.nodes.remote_folders import Site, site_of
from tfcluster.plans.plan import NodePlan, TaskId
from tfcluster.preflight import probes
from tfcluster.rundir.events import Event, Hint
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.states import Status
from tfcluster.supervision.decisions import Stop
from tfcluster.supervision.supervisor import Supervisor

STOLEN = "UnknownError: Could not start gRPC server"


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
    """A gathering that copies nothing; it calls `during_restore` in each restore."""

    def __init__(self) -> None:
        self.during_restore: Callable[[], object] = int
        self.calls: list[str] = []
        self.has_missed = False

    async def put_state_back(self, tasks: Iterable[TaskId]) -> int | None:
        self.calls.append("put back")
        self.during_restore()
        await asyncio.sleep(0.01)
        return None

    async def gather_latest(self, *, others_train: bool = False) -> list[Event]:
        self.calls.append("gather latest")
        return []

    def take_events(self) -> list[Event]:
        return []

    def follow_chief(self, chief: TaskId) -> None:
        self.calls.append(f"follow {chief}")


class Scene:
    """The attempts of a supervisor with the given history; `on_connect` stands for new agents."""

    def __init__(self, history: Replay, tmp_path: Path) -> None:
        self.history, self.supervisor = history, history.supervisor
        paths = self.paths = RunPaths(tmp_path)
        self.hub, self.run_gathering = FakeHub(paths), FakeGathering()
        self.on_connect: Callable[[], object] = int
        self.recorded: list[Event] = []
        run_writer: Any = SimpleNamespace(wait_for=ignore, keep_up=lambda: None, wake_s=None)
        coordinator_loop = Loop(
            self.hub, self.supervisor, run_writer, lambda: ignore(self.supervisor.take_orders())
        )
        run_gathering: Any = self.run_gathering
        startup = Startup(
            Launch(history.plan, {}),
            paths,
            run_gathering,
            self.hub,
            coordinator_loop.until,
            announce=ignore,
        )
        self.attempts = Attempts(
            self.supervisor,
            startup,
            run_writer,
            coordinator_loop,
            self._connect,
            self.recorded.append,
        )

    async def _connect(self, node: NodePlan) -> None:
        self.on_connect()

    def lose(self) -> None:
        self.hub.put_call(lambda: self.attempts.lose("local", NodeLoss("killed")))

    def play(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def within_seconds() -> None:
            async with asyncio.timeout(5):
                await work()

        asyncio.run(within_seconds())


def after_a_loss(tmp_path: Path) -> Scene:
    """Return a scene where the only node is lost and its checkpoints are gathered."""
    history = replay_of(backoff_s=0.0)
    scene = Scene(history, tmp_path)
    scene.attempts.drop("local")
    history.supervisor.node_lost("local", NodeLoss("killed"), history.now)
    history._take()
    history.gather()
    return scene


def next_attempt_of(history: Replay) -> Any:
    assert history.supervisor.next_attempt is not None
    return history.supervisor.next_attempt


def test_a_run_fails_if_each_new_agent_dies_before_it_holds_its_ports(tmp_path: Path) -> None:
    scene = after_a_loss(tmp_path)
    history = scene.history
    scene.on_connect = scene.lose

    async def work() -> None:
        with pytest.raises(RunOver):
            await scene.attempts.run_restarts()

    scene.play(work)
    assert history.outcome() == (Status.FAILED, 3)
    assert history.supervisor.restarts.history(None).spent == 3, "all restarts are used up"


def test_no_task_starts_if_the_run_is_stopped_while_fresh_ports_are_held(tmp_path: Path) -> None:
    history = replay_of("worker:0", "worker:1", "evaluator:0").after(time.monotonic() - 100)
    history.exits("worker:1", 1, last=STOLEN).ended("worker:0").gather()
    scene = Scene(history, tmp_path)
    scene.hub.put_call(lambda: scene.supervisor.stop(Stop("Ctrl-C", 130), history.now))
    scene.hub.put_call(lambda: scene.hub.keep("local", msg.PortsHeld(ports={})))
    scene.play(lambda: scene.attempts._restart(next_attempt_of(history)))
    assert (scene.hub.sent, scene.supervisor.gang.number) == (["hold_ports"], 1)


def test_no_task_starts_if_the_node_is_lost_during_the_restore(tmp_path: Path) -> None:
    history = replay_of(backoff_s=0.0)
    history.exits("worker:1", killed=signal.SIGKILL).ended("worker:0").gather()
    scene = Scene(history, tmp_path)
    scene.run_gathering.during_restore = scene.lose
    scene.play(lambda: scene.attempts._restart(next_attempt_of(history)))
    assert scene.hub.sent == []


def test_a_chief_that_restarts_alone_continues_from_its_last_save(tmp_path: Path) -> None:
    history = replay_of(kind="plain", backoff_s=0.0)
    history.exits("worker:0", killed=signal.SIGKILL).after(0.1)
    scene = Scene(history, tmp_path)
    order: Any = history.orders[-1]
    with pytest.raises(KeyError):  # raised at the start order, since there is no agent
        scene.play(lambda: scene.attempts._restart_alone(order))
    assert scene.run_gathering.calls == ["gather latest", "put back"]


def test_a_second_drop_waits_until_the_agent_has_ended(
    tmp_path: Path,
) -> None:
    async def drop_twice() -> list[str]:
        steps: list[str] = []

        class Link:
            heard_at, has_ended = 0.0, True

            async def close(self) -> None:
                await asyncio.sleep(0.05)
                steps.append("ended")

        hub = FakeHub(RunPaths(tmp_path))
        link: Any = Link()
        hub._links["local"] = link
        dropping = asyncio.create_task(hub.drop("local"))
        await asyncio.sleep(0)
        await hub.drop("local")
        steps.append("free")
        await dropping
        return steps

    assert asyncio.run(drop_twice()) == ["ended", "free"]


def test_a_stopped_coordinator_reads_messages_before_it_checks_deadlines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All deadlines are due at once after Ctrl-Z and `fg`, while answers are still unread."""
    monkeypatch.setattr(loop, "_LATE_S", 0.1)
    history = replay_of(run_deadline_s=0.2)
    scene = Scene(history, tmp_path)

    async def work() -> None:
        now = asyncio.get_running_loop().time()
        history.supervisor.begin_run(now)
        asyncio.get_running_loop().call_later(0.01, time.sleep, 0.5)  # blocks the loop
        finish = [partial(history.exits, task) for task in ("worker:0", "worker:1")]
        for call in finish:  # queued by the link once the loop runs again
            asyncio.get_running_loop().call_later(0.6, scene.hub.put_call, call)
        with pytest.raises(RunOver):
            await scene.attempts.loop.pause(now + 60)

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
        scene.hub.put_call(lambda: scene.supervisor.stop(Stop("Ctrl-C", 130), history.now))
        with pytest.raises(RunOver):
            await scene.attempts.startup.preflight(history.plan.nodes)

    scene.play(work)
    assert history.outcome()[1] == 130
    dead.set()


def test_only_nodes_that_were_reached_are_checked_before_the_start(tmp_path: Path) -> None:
    """A gang that may shrink starts without the others, which used to fail the check."""
    scene = Scene(replay_of(), tmp_path)
    startup, (local,) = scene.attempts.startup, scene.history.plan.nodes
    startup.plan = replace(startup.plan, nodes=(local, replace(local, name="10.0.0.9")))

    async def work() -> None:
        await startup.preflight([local])
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


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_node_is_tried_again_when_its_lease_has_ended(tmp_path: Path, comes_back: bool) -> None:
    """The old agent, if not proved to have ended, may block the new one until its lease ends."""
    scene = after_a_loss(tmp_path)
    again = next_attempt_of(scene.history)
    lease: dict[str, float] = {}
    tries: list[float] = []

    def connect() -> None:
        tries.append(scene.attempts.loop.now())
        lease.setdefault("ends", tries[0] + 0.2)
        if len(tries) == 1 or not comes_back:
            raise NodeLostError("nothing proves that its former agent has ended")

    def answer(node: str, order: msg.Order) -> None:
        held = msg.PortsHeld(ports={"worker:0": 2222, "worker:1": 2223})
        scene.hub.put_call(lambda: scene.hub.keep("local", held))

    scene.hub.send = answer  # type: ignore[method-assign]
    scene.on_connect = connect
    scene.hub.fenced_until = lambda node: lease["ends"]  # type: ignore[method-assign]
    scene.play(lambda: scene.attempts._reconnect(again))
    assert len(tries) == 2
    assert tries[1] >= lease["ends"]
    (said,) = [event.message for event in scene.recorded if isinstance(event, Hint)]
    assert "waiting for the lease of local: its tasks may run for" in said
    assert scene.attempts._lost == (set() if comes_back else {"local"})
    assert (next_attempt_of(scene.history) is again) == comes_back, "else the attempt is spent"


def test_a_node_that_was_reached_but_did_not_become_ready_stays_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node used to count as ready: its tasks started without the results of `job.prepare`."""
    scene = after_a_loss(tmp_path)
    again = next_attempt_of(scene.history)
    scene.hub.fenced_until = lambda node: scene.attempts.loop.now() + 60  # type: ignore[method-assign]

    async def fails(*_: object, **__: object) -> None:
        raise NodeLostError("no answer")

    monkeypatch.setattr(Startup, "hold_ports", fails)
    scene.play(lambda: scene.attempts._reconnect(again))
    assert scene.attempts._lost == {"local"}
    assert next_attempt_of(scene.history) is not again, "the attempt is spent"


def test_tasks_start_with_the_present_address_of_a_node_that_came_back(tmp_path: Path) -> None:
    """Its ports were held in the background, by steps with a plan of their own."""
    scene = Scene(replay_of(), tmp_path)
    startup = scene.attempts.startup
    startup.plan = replace(startup.plan, interface="ib0").at({"local": "10.20.0.1"})
    members = [task.id for task in startup.plan.tasks]
    ports = {str(task): 2222 for task in members}
    scene.hub.keep("local", msg.PortsHeld(ports=ports, host="10.20.0.9"))
    scene.hub.holds_ports = lambda node: True  # type: ignore[method-assign]
    startup.start_tasks(2, members, only=members, restored_step=None)
    assert {task.host for task in startup.plan.tasks} == {"10.20.0.9"}


def test_a_link_may_be_dropped_and_dismissed_at_the_same_time(tmp_path: Path) -> None:
    """The end of a run and the loss of a node may coincide."""
    hub = FakeHub(RunPaths(tmp_path))

    async def close(**_: object) -> None:
        await asyncio.sleep(0.01)

    hub._links["far"] = cast("Any", SimpleNamespace(heard_at=0.0, has_ended=True, close=close))

    async def both() -> None:
        await asyncio.gather(hub.drop("far"), hub._dismiss("far", keeps_folders=False))

    asyncio.run(both())
    assert hub._links == {}
