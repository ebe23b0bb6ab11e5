"""That whatever befalls the coordinator, no agent is left to itself."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from typing import Any, cast

import pytest

from tfcluster.errors import SurroundingsError
from tfcluster.run.attempts import Attempts
from tfcluster.run.coordinator import Coordinator
from tfcluster.run.ending import Outcome
from tfcluster.run.harvest import Harvest
from tfcluster.run.journal import Journal
from tfcluster.run.paths import RunPaths
from tfcluster.run.snapshot import RunSnapshot
from tfcluster.run.wishes import Wishes

from .conftest import plan_of
from .test_doctor import Agent

TAKEN = {"type": "port_taken", "task": "worker:0", "host": "127.0.0.1", "port": 2222}


def run_to_its_end(
    paths: RunPaths, state: RunSnapshot, agent: Agent, *, secrets: tuple[str, ...] = ()
) -> Outcome:
    async def run() -> Outcome:
        plan, journal = plan_of(), Journal(state, paths, secrets=secrets)
        with closing(journal):
            coordinator = Coordinator(
                plan,
                journal,
                Harvest(plan, paths),
                backend_of=lambda _: cast(Any, agent),
                wishes=Wishes(),
            )
            return await coordinator.run()

    return asyncio.run(run())


def last_event(paths: RunPaths) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(paths.events.read_text().splitlines()[-1])
    return found


def test_what_stops_a_run_before_its_first_task_is_written_down(
    paths: RunPaths, state: RunSnapshot
) -> None:
    outcome = run_to_its_end(paths, state, Agent({"hold_ports": [TAKEN]}))
    assert outcome.exit_code == 3
    told = last_event(paths)
    assert told["type"] == "run_finished"
    assert told["reason"].startswith("port 127.0.0.1:2222 (worker:0) is in use")
    assert "write another port" in told["hint"]
    assert (state.reason, state.hint) == (told["reason"], told["hint"])


def test_so_is_what_stops_a_later_attempt_with_its_secrets_covered(
    paths: RunPaths, state: RunSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def starts(_: Attempts) -> None: ...

    async def cannot(_: Attempts) -> None:
        raise SurroundingsError("gpu1 said s3cr3t", cure="type s3cr3t there")

    monkeypatch.setattr(Attempts, "first", starts)
    monkeypatch.setattr(Attempts, "keep_going", cannot)
    run_to_its_end(paths, state, Agent({}), secrets=("s3cr3t",))
    told = last_event(paths)
    assert (told["reason"], told["hint"]) == ("gpu1 said ********", "type ******** there")
    assert "s3cr3t" not in paths.state.read_text()


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
