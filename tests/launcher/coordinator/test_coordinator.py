"""The coordinator records its errors, ends its agents, and says once what several nodes say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.coordinator.scripted import LOCAL, REMOTE, Agent, FakeNodes, Frame, perform
from tests.launcher.coordinator.scripted import plan_on_two_nodes as plan_on

from tfcluster.coordinator.coordinator import Coordinator
from tfcluster.coordinator.gathering import RunGathering
from tfcluster.rundir import fold
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot

Agents = dict[str, Agent]
TAKEN = {"type": "port_taken", "task": "worker:0", "host": "127.0.0.1", "port": 2222}


@pytest.fixture
def agents(tmp_path: Path) -> Agents:
    return {name: Agent(name, str(tmp_path)) for name in (LOCAL, REMOTE)}


def events(paths: RunPaths, kind: str) -> list[dict[str, Any]]:
    found = map(json.loads, paths.events.read_text().splitlines())
    return [event for event in found if event["type"] == kind]


def test_an_error_before_the_first_task_is_recorded(
    agents: Agents, paths: RunPaths, tmp_path: Path
) -> None:
    agents[LOCAL].script = {"ports": [TAKEN]}
    ended = perform(plan_on(tmp_path), agents, paths)
    assert ended.outcome.exit_code == 3
    (event,) = events(paths, "run_finished")
    assert event["reason"].startswith("port 127.0.0.1:2222 (worker:0) is in use")
    assert "write another port" in event["hint"]
    assert (ended.state.reason, ended.state.hint) == (event["reason"], event["hint"])


def test_agents_are_ended_even_if_the_end_of_the_run_raises(
    agents: Agents, paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail_to_finish(_: Coordinator) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Coordinator, "_finish", fail_to_finish)
    monkeypatch.setattr(RunGathering, "needs_agents", True)
    with pytest.raises(ExceptionGroup) as caught:
        perform(plan_on(tmp_path), agents, paths)
    assert caught.group_contains(RuntimeError, match="a bug")
    assert all(agent.writer and agent.writer.is_closing() for agent in agents.values())


def test_a_run_was_queued_although_its_hosts_have_names_that_the_plan_knew(
    agents: Agents, paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is in Kubernetes, whose pods have names before they run."""
    monkeypatch.setattr(FakeNodes, "reason", "2 pods are Pending")
    states = list[str]()
    apply = fold.apply

    def note(state: RunSnapshot, *event: Any) -> None:
        apply(state, *event)
        states.append(str(state.status))

    monkeypatch.setattr(fold, "apply", note)
    assert perform(plan_on(tmp_path), agents, paths).outcome.exit_code == 0
    assert list(dict.fromkeys(states)) == ["starting", "queued", "running", "succeeded"]
    assert states.index("running") > states.index("starting", states.index("queued"))


def test_the_same_failure_to_preload_on_several_nodes_is_reported_once(
    agents: Agents, paths: RunPaths, tmp_path: Path
) -> None:
    failures: list[Frame] = [
        {"type": "preload_failed", "error": why} for why in ("a thread", "a thread", "hung")
    ]
    agents[LOCAL].script, agents[REMOTE].script = (
        {"trained": failures[:1]},
        {"trained": failures[1:]},
    )
    ended = perform(plan_on(tmp_path, max_restarts=0), agents, paths)
    said = [event["message"] for event in events(paths, "hint")]
    whys = [message.rpartition(": ")[2] for message in said if "preloading failed" in message]
    assert sorted(whys) == ["a thread", "hung"]
    assert ended.state.warnings == [], "the summary does not repeat it"
