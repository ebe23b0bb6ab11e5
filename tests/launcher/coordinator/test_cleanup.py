"""`down` ends the hosts of a run whose coordinator is gone, and asks none after its lease."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.conftest import plan_of

from tfcluster.agent.catalogue import LostRunEnded
from tfcluster.coordinator import cleanup
from tfcluster.errors import NodeLostError
from tfcluster.plans.plan import NodePlan, Supervision
from tfcluster.run_handle import Run
from tfcluster.rundir import registry, run_writer
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status
from tfcluster.typed_json import to_json

KNOWN = {"pid": 5, "guard_pid": 6, "identity": {"pid": 5}}
ENDED = {"ended": ["agent"], "stays": [], "is_proved": True, "folder": "/c/nodes/r"}


class Hosts:
    """Hosts with fixed answers by node; an error means that the node does not answer."""

    def __init__(self, answers: Mapping[str, Mapping[str, Any] | NodeLostError]) -> None:
        self.answers, self.asked = dict(answers), list[str]()

    async def end_run(self, node: NodePlan, **_: object) -> LostRunEnded:
        self.asked.append(node.name)
        answer = self.answers[node.name]
        if isinstance(answer, NodeLostError):
            raise answer
        return LostRunEnded.read(answer)


@pytest.fixture
def lost(paths: RunPaths, state: RunSnapshot) -> RunSnapshot:
    """Return a lost run on this machine and three hosts, of which two were reached."""
    plan = plan_of()
    hosts = tuple(NodePlan(name, "ssh", None, "/job") for name in ("a", "b", "never-reached"))
    plan = replace(plan, nodes=(*plan.nodes, *hosts), supervision=Supervision(lease_s=600))
    run_writer.write_json(paths.plan, to_json(plan))
    state.status, state.ended_at = Status.LOST, 100.0
    state.agents = {"local": KNOWN, "a": dict(KNOWN), "b": dict(KNOWN)}
    state.leases = cleanup.leases(paths, state, time.time())
    run_writer.write_json(paths.state, state.to_json())
    return state


def serve(monkeypatch: pytest.MonkeyPatch, **answers: Mapping[str, Any] | NodeLostError) -> Hosts:
    hosts = Hosts(answers)
    monkeypatch.setattr(cleanup, "class_of", lambda node: hosts)
    return hosts


def test_every_host_that_was_reached_may_have_tasks_until_its_lease_ends(lost: RunSnapshot) -> None:
    assert sorted(lost.leases) == ["a", "b"]
    assert all(600 < until - time.time() < 610 for until in lost.leases.values())
    assert registry.is_open(lost)


def test_a_host_is_asked_again_until_it_has_answered(
    paths: RunPaths, lost: RunSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = serve(monkeypatch, a=ENDED, b=NodeLostError("b cannot be reached: no route"))
    first, second = cleanup.end_nodes(paths)
    assert (first.ended, first.folder, first.trouble) == (("agent",), "/c/nodes/r", "")
    assert second.trouble == "b cannot be reached: no route"
    assert second.until == lost.leases["b"]
    assert registry.is_open(registry.load(paths))
    hosts.answers["b"] = ENDED
    assert [result.node for result in cleanup.end_nodes(paths)] == ["b"]
    assert hosts.asked == ["a", "b", "b"]
    assert not registry.is_open(registry.load(paths))
    assert cleanup.end_nodes(paths) == []


@pytest.mark.parametrize("call", ["stop", "delete", "stop_async"])
def test_a_lost_run_is_cleaned_up_in_a_running_loop_as_in_a_notebook(
    paths: RunPaths, lost: RunSnapshot, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    hosts = serve(monkeypatch, a=ENDED, b=ENDED)

    async def cell() -> None:
        if call == "stop_async":
            await Run(paths).stop_async()
        else:
            getattr(Run(paths), call)()

    asyncio.run(cell())

    assert sorted(hosts.asked) == ["a", "b"]
    assert call == "delete" or not registry.is_open(registry.load(paths))
    assert paths.root.exists() == (call != "delete")


def test_the_loop_is_free_while_stop_async_cleans_up(
    paths: RunPaths, lost: RunSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_free = threading.Event()

    def wait_for_loop(paths: RunPaths, say: object) -> None:
        assert is_free.wait(20), "the loop is blocked"

    monkeypatch.setattr(cleanup, "end_everywhere", wait_for_loop)

    async def stop() -> None:
        stopping = asyncio.create_task(Run(paths).stop_async())
        await asyncio.sleep(0.3)
        is_free.set()
        await stopping

    asyncio.run(stop())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ENDED | {"is_proved": False}, "nothing proves that its agent has ended"),
        (
            ENDED | {"stays": ["worker:0"], "is_proved": False},
            "worker:0 was killed but still lives",
        ),
    ],
)
def test_a_node_that_may_still_have_tasks_is_reported(
    paths: RunPaths,
    lost: RunSnapshot,
    monkeypatch: pytest.MonkeyPatch,
    answer: Mapping[str, Any],
    words: str,
) -> None:
    serve(monkeypatch, a=answer, b=ENDED)
    assert words in cleanup.end_nodes(paths)[0].trouble


def test_the_function_of_a_lost_run_is_removed(
    paths: RunPaths, lost: RunSnapshot, tmp_path: Path
) -> None:
    package = tmp_path / ".tfcluster" / "function-1234abcd"
    package.mkdir(parents=True)
    plan = replace(
        plan_of(), workdir=str(tmp_path), include=("data", ".tfcluster/function-1234abcd")
    )
    run_writer.write_json(paths.plan, to_json(plan))
    (tmp_path / "data").mkdir()
    said: list[str] = []
    cleanup.end_everywhere(paths, said.append)
    assert str(package) in said[0]
    assert (package.exists(), (tmp_path / "data").exists()) == (False, True)


def test_a_host_is_not_asked_after_its_lease(
    paths: RunPaths, lost: RunSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost.leases = dict.fromkeys(lost.leases, time.time() - 1)
    run_writer.write_json(paths.state, lost.to_json())
    assert not registry.is_open(registry.load(paths))
    assert cleanup.end_nodes(paths) == []
