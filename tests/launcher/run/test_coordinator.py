"""That whatever befalls the coordinator, no agent is left to itself."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import pytest

from tfcluster.run.coordinator import Coordinator
from tfcluster.run.harvest import Harvest
from tfcluster.run.journal import Journal
from tfcluster.run.paths import RunPaths
from tfcluster.run.snapshot import RunSnapshot
from tfcluster.run.wishes import Wishes

from .conftest import plan_of
from .test_doctor import Agent

TAKEN = {"type": "port_taken", "task": "worker:0", "host": "127.0.0.1", "port": 2222}


def test_agents_are_ended_also_when_bringing_home_breaks(
    paths: RunPaths, state: RunSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks(_: Coordinator) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Coordinator, "_finish", breaks)
    monkeypatch.setattr(Harvest, "needs_agents", True)
    agents: list[Any] = []

    async def run() -> None:
        agents.append(Agent({"hold_ports": [TAKEN]}))
        plan = plan_of()
        journal = Journal(state, paths)
        with closing(journal):
            harvest, wishes = Harvest(plan, paths), Wishes()
            await Coordinator(
                plan, journal, harvest, backend_of=lambda _: agents[0], wishes=wishes
            ).run()

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(run())
    assert caught.group_contains(RuntimeError, match="a fault of ours")
    assert agents[0].is_closed
