"""Starts of later attempts, and what may happen between their steps."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.launcher.supervision.story import Replay, replay_of

from tfcluster.backends.base import Backend
from tfcluster.checkpoints.restore import PutBack
from tfcluster.coordinator import loop
from tfcluster.coordinator.attempts import Attempts
from tfcluster.coordinator.loop import Loop, Over
from tfcluster.coordinator.startup import Startup
from tfcluster.errors import NodeLostError
from tfcluster.nodes.hub import Hub
from tfcluster.nodes.remote_folders import Site, site_of
from tfcluster.plan.plan import NodePlan, TaskId
from tfcluster.preflight import probes
from tfcluster.rundir.events import Event, Status
from tfcluster.rundir.paths import RunPaths
from tfcluster.supervision.decisions import Stop

STOLEN = "UnknownError: Could not start gRPC server"


class Lines(Hub):
    """Nothing is reached; what is sent is kept."""

    def __init__(self, paths: RunPaths) -> None:
        super().__init__(_no_backend, paths)
        self._here = paths
        self.sent: list[str] = []

    def send(self, node: str, message: dict[str, Any]) -> None:
        self.sent.append(message["type"])

    def site(self, node: str) -> Site:
        return site_of(node, self._here, {})

    def hears(self, call: Callable[[], object]) -> None:
        """The loop makes the call in its own time."""
        self.put(lambda: void(call()))


def void(value: object) -> None:
    """Calls of the loop give nothing back."""


def _no_backend(node: NodePlan) -> Backend:
    raise AssertionError(node)


class Home:
    """Brings home and puts back nothing; `meanwhile` happens while it does."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = int
        self.asked: list[str] = []

    async def put_state_back(self, tasks: Iterable[TaskId]) -> PutBack:
        self.asked.append("put back")
        self.meanwhile()
        await asyncio.sleep(0.01)
        return PutBack(None, (), ())

    async def bring_home(self, *, others_train: bool = False) -> list[Event]:
        self.asked.append("bring home")
        return []

    def heed(self, chief: TaskId) -> None:
        self.asked.append(f"heed {chief}")


class Scene:
    """Attempts of a told supervisor, with agents that are `connect`."""

    def __init__(self, told: Replay, tmp_path: Path) -> None:
        self.told, self.supervisor = told, told.supervisor
        paths = RunPaths(tmp_path)
        self.lines, self.home = Lines(paths), Home()
        self.on_connect: Callable[[], object] = int
        journal: Any = SimpleNamespace(wait_for=void, keep_up=lambda: None, wake_s=None)
        turns = Loop(
            self.lines, self.supervisor, journal, lambda: void(self.supervisor.orders.take())
        )
        home: Any = self.home
        startup = Startup(told.plan, paths, home, self.lines, turns.until, announce=void)
        self.attempts = Attempts(self.supervisor, startup, journal, turns, self._connect, void)

    async def _connect(self, node: NodePlan) -> None:
        self.on_connect()

    def lose(self) -> None:
        self.lines.hears(lambda: self.attempts.lose("local", "killed"))

    def play(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def within_seconds() -> None:
            async with asyncio.timeout(5):
                await work()

        asyncio.run(within_seconds())


def after_a_loss(tmp_path: Path) -> Scene:
    """The only node is lost, its tasks are over, and what they saved is at home."""
    told = replay_of(backoff_s=0.0)
    scene = Scene(told, tmp_path)
    scene.attempts.drop("local")
    told.supervisor.node_lost("local", "killed", told.now)
    told._take()
    told.gather()
    return scene


def again(told: Replay) -> Any:
    assert told.supervisor.next_attempt is not None
    return told.supervisor.next_attempt


def test_a_new_agent_that_dies_before_it_holds_its_ports_ends_the_run(tmp_path: Path) -> None:
    scene = after_a_loss(tmp_path)
    told = scene.told
    scene.on_connect = scene.lose
    scene.play(lambda: scene.attempts._start_again(again(told)))
    assert told.outcome() == (Status.FAILED, 3)


def test_nothing_starts_when_a_stop_comes_while_fresh_ports_are_fetched(tmp_path: Path) -> None:
    told = replay_of("worker:0", "worker:1", "evaluator:0").after(time.monotonic() - 100)
    told.exits("worker:1", 1, last=STOLEN).ended("worker:0").gather()
    scene = Scene(told, tmp_path)
    scene.lines.hears(lambda: scene.supervisor.stop(Stop("Ctrl-C", 130), told.now))
    scene.lines.hears(lambda: scene.lines.keep("local", {"type": "ports_held", "ports": {}}))
    scene.play(lambda: scene.attempts._start_again(again(told)))
    assert (scene.lines.sent, scene.supervisor.gang.number) == (["hold_ports"], 1)


def test_nothing_starts_where_the_node_is_lost_while_the_state_is_put_back(tmp_path: Path) -> None:
    told = replay_of(backoff_s=0.0)
    told.exits("worker:1", killed=signal.SIGKILL).ended("worker:0").gather()
    scene = Scene(told, tmp_path)
    scene.home.meanwhile = scene.lose
    scene.play(lambda: scene.attempts._start_again(again(told)))
    assert scene.lines.sent == []


def test_a_chief_that_starts_alone_goes_on_where_it_saved_last(tmp_path: Path) -> None:
    told = replay_of(kind="plain", backoff_s=0.0)
    told.exits("worker:0", killed=signal.SIGKILL).after(0.1)
    scene = Scene(told, tmp_path)
    wanted: Any = told.orders[-1]
    with pytest.raises(KeyError):  # it gets as far as to the start, on an agent that is not there
        scene.play(lambda: scene.attempts._start_alone(wanted))
    assert scene.home.asked == ["bring home", "put back"]


def test_an_agent_is_ended_before_another_takes_its_place_also_when_it_is_being_dropped(
    tmp_path: Path,
) -> None:
    async def story_of_two() -> list[str]:
        seen: list[str] = []

        class Link:
            heard_at, has_ended = 0.0, True

            async def close(self) -> None:
                await asyncio.sleep(0.05)
                seen.append("ended")

        lines = Lines(RunPaths(tmp_path))
        link: Any = Link()
        lines._links["local"] = link
        dropping = asyncio.create_task(lines.drop("local"))
        await asyncio.sleep(0)
        await lines.drop("local")
        seen.append("free")
        await dropping
        return seen

    assert asyncio.run(story_of_two()) == ["ended", "free"]


def test_who_was_stopped_himself_hears_what_was_said_before_he_judges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-Z and fg all deadlines are due at once, and the answers are still to be read."""
    monkeypatch.setattr(loop, "_LATE_S", 0.1)
    told = replay_of(run_deadline_s=0.2)
    scene = Scene(told, tmp_path)

    async def work() -> None:
        now = asyncio.get_running_loop().time()
        told.supervisor.begin_run(now)
        asyncio.get_running_loop().call_later(0.01, time.sleep, 0.5)  # nobody runs meanwhile
        finish = [partial(told.exits, task) for task in ("worker:0", "worker:1")]
        for call in finish:  # what a reader of the link puts in the queue once it runs again
            asyncio.get_running_loop().call_later(0.6, scene.lines.hears, call)
        with pytest.raises(Over):
            await scene.attempts.loop.pause(now + 60)

    scene.play(work)
    assert told.outcome() == (Status.SUCCEEDED, 0)


def test_a_look_that_hangs_keeps_nobody_who_presses_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder on a dead NFS, or a name that no server resolves."""
    dead = threading.Event()
    monkeypatch.setattr(probes, "probe_this_node", lambda plan: dead.wait(60))
    told = replay_of()
    told.supervisor = told.make_supervisor()  # of whose gang nothing has started
    told.supervisor.begin_run(told.now)
    scene = Scene(told, tmp_path)

    async def work() -> None:
        scene.lines.hears(lambda: scene.supervisor.stop(Stop("Ctrl-C", 130), told.now))
        with pytest.raises(Over):
            await scene.attempts.startup.preflight()

    scene.play(work)
    assert told.outcome()[1] == 130
    dead.set()


@pytest.mark.parametrize("has_ended", [True, False])
def test_what_has_certainly_ended_needs_no_lease_to_pass(tmp_path: Path, has_ended: bool) -> None:
    """A container that was removed; of a host that does not answer nobody knows."""
    lines = Lines(RunPaths(tmp_path))
    link: Any = SimpleNamespace(heard_at=100.0, has_ended=has_ended, close=_closed)
    lines._links["far"] = link
    lines._has_lease.add("far")
    asyncio.run(lines.drop("far"))
    assert lines.fenced_until("far") == (0.0 if has_ended else pytest.approx(171.0))


async def _closed() -> None:
    """As a link that is closed."""


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_node_is_tried_once_more_when_its_lease_is_over(tmp_path: Path, comes_back: bool) -> None:
    """Until then it may be its former agent, not proved to have ended, that stands in the way."""
    scene = after_a_loss(tmp_path)
    lease: dict[str, float] = {}
    tries: list[float] = []

    def connect() -> None:
        tries.append(scene.attempts.loop.now())
        lease.setdefault("ends", tries[0] + 0.2)
        if len(tries) == 1 or not comes_back:
            raise NodeLostError("nothing proves that its former agent has ended")

    def answer(node: str, message: dict[str, Any]) -> None:
        held = {"type": "ports_held", "ports": {"worker:0": 2222, "worker:1": 2223}}
        scene.lines.hears(lambda: scene.lines.keep("local", held))

    scene.lines.send = answer  # type: ignore[method-assign]
    scene.on_connect = connect
    scene.lines.fenced_until = lambda node: lease["ends"]  # type: ignore[method-assign]
    scene.play(lambda: scene.attempts._reconnect())
    assert len(tries) == 2
    assert tries[1] >= lease["ends"]
    assert scene.attempts._gone == (set() if comes_back else {"local"})


def test_a_node_that_was_reached_and_did_not_get_ready_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as renewed: its tasks started without what `job.prepare` makes."""
    scene = after_a_loss(tmp_path)
    scene.lines.fenced_until = lambda node: scene.attempts.loop.now() + 60  # type: ignore[method-assign]

    async def fails(*_: object, **__: object) -> None:
        raise NodeLostError("it said nothing")

    monkeypatch.setattr(Startup, "hold_ports", fails)
    scene.play(lambda: scene.attempts._reconnect())
    assert scene.attempts._gone == {"local"}
    assert scene.attempts._lost == {"local"}


def test_a_link_that_is_being_dropped_needs_no_goodbye(tmp_path: Path) -> None:
    """The end of a run and the loss of a node may come together."""
    lines = Lines(RunPaths(tmp_path))

    async def close(**_: object) -> None:
        await asyncio.sleep(0.01)

    lines._links["far"] = cast("Any", SimpleNamespace(heard_at=0.0, has_ended=True, close=close))

    async def both() -> None:
        await asyncio.gather(lines.drop("far"), lines._dismiss("far", keeps_folders=False))

    asyncio.run(both())
    assert lines._links == {}
