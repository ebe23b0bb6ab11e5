"""`Answers` waits for the answers of agents and reports what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from tests.launcher.coordinator.test_attempts import FakeHub

from tfcluster.agent.catalogue import PortsHeld
from tfcluster.errors import NodeLostError
from tfcluster.nodes import orders
from tfcluster.nodes.orders import Answers
from tfcluster.rundir.paths import RunPaths

HELD = PortsHeld(ports={})


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "SHOWN_AFTER_S", 0.02)
    monkeypatch.setattr(orders, "ANSWER_S", 0.2)


class Scene:
    """A fake hub with the agents `a` and `b`, and a record of the reported waits."""

    def __init__(self, folder: Path) -> None:
        self.hub, self.waits = FakeHub(RunPaths(folder)), list[str | None]()

    async def until(self, condition: Callable[[], bool], *, at: float | None = None) -> None:
        while not condition():
            await self.hub.turn(0.01)

    def wait(self, *, work_s: float | None = 0.0, lost: Collection[str] = ()) -> None:
        waiting = Answers(self.hub, self.until, self.waits.append).require(
            ["a", "b"], PortsHeld, what="to hold ports", work_s=work_s, is_lost=lost.__contains__
        )

        async def within_seconds() -> None:
            async with asyncio.timeout(30):
                await waiting

        asyncio.run(within_seconds())


def test_a_quick_answer_is_not_reported_as_a_wait(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.hub.keep("a", HELD)
    scene.hub.keep("b", HELD)
    scene.wait()
    assert scene.waits == []


def test_an_agent_that_does_not_answer_is_reported_as_lost(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.hub.keep("b", HELD)
    with pytest.raises(NodeLostError, match="a: the agent was asked to hold ports, and does"):
        scene.wait()
    assert scene.waits == ["a to hold ports", None]


def test_a_node_that_is_lost_is_not_waited_for(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.hub.keep("b", HELD)
    scene.wait(lost={"a"})
    assert scene.waits == []


@pytest.mark.parametrize("work_s", [60.0, None])
def test_an_answer_to_a_slow_request_is_waited_for(tmp_path: Path, work_s: float | None) -> None:
    scene = Scene(tmp_path)
    scene.hub.keep("a", HELD)

    async def until(condition: Callable[[], bool], *, at: float | None = None) -> None:
        if scene.waits:
            await asyncio.sleep(0.3)  # longer than `ANSWER_S`
            scene.hub.keep("b", HELD)
        while not condition():
            await scene.hub.turn(0.01)

    scene.until = until  # type: ignore[method-assign]
    scene.wait(work_s=work_s)
    assert scene.waits == ["b to hold ports", None]
