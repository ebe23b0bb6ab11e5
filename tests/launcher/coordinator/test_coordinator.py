"""The coordinator survives the loss of an agent at any moment, and ends agents on its errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.coordinator import scripted
from tests.launcher.messages import read_report
from tests.launcher.preflight.test_doctor import Agent

from tfcluster.agent import catalogue as msg
from tfcluster.coordinator.attempts import Attempts
from tfcluster.coordinator.coordinator import Coordinator
from tfcluster.coordinator.gathering import RunGathering
from tfcluster.coordinator.starter import Launch
from tfcluster.errors import SetupError
from tfcluster.node_loss import NodeLoss
from tfcluster.nodes import orders
from tfcluster.nodes.task_folders import TaskFolders
from tfcluster.plans.plan import NodePlan, Supervision
from tfcluster.rundir import fold
from tfcluster.rundir.events import Restarting
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status
from tfcluster.spec import LaunchOptions
from tfcluster.supervision import supervisor
from tfcluster.supervision.decisions import Outcome

TAKEN = {"type": "port_taken", "task": "worker:0", "host": "127.0.0.1", "port": 2222}


def run_to_its_end(
    paths: RunPaths, state: RunSnapshot, agent: Agent, *, secrets: tuple[str, ...] = ()
) -> Outcome:
    async def run() -> Outcome:
        plan, run_writer = plan_of(), RunWriter(state, paths, secrets=secrets)
        with closing(run_writer):
            coordinator = Coordinator(
                Launch(plan, {}),
                run_writer,
                RunGathering(plan, paths),
                open_nodes=lambda *_: cast(Any, agent),
            )
            return await coordinator.run()

    return asyncio.run(run())


def last_event(paths: RunPaths) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(paths.events.read_text().splitlines()[-1])
    return found


def test_an_error_before_the_first_task_is_recorded(paths: RunPaths, state: RunSnapshot) -> None:
    outcome = run_to_its_end(paths, state, Agent({"hold_ports": [TAKEN]}))
    assert outcome.exit_code == 3
    event = last_event(paths)
    assert event["type"] == "run_finished"
    assert event["reason"].startswith("port 127.0.0.1:2222 (worker:0) is in use")
    assert "write another port" in event["hint"]
    assert (state.reason, state.hint) == (event["reason"], event["hint"])


def test_an_error_of_a_later_attempt_is_recorded_without_secrets(
    paths: RunPaths, state: RunSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def starts(_: Attempts) -> None: ...

    async def fail(_: Attempts) -> None:
        raise SetupError("gpu1 said s3cr3t", fix="type s3cr3t there")

    monkeypatch.setattr(Attempts, "start_first", starts)
    monkeypatch.setattr(Attempts, "run_restarts", fail)
    run_to_its_end(paths, state, Agent({}), secrets=("s3cr3t",))
    event = last_event(paths)
    assert (event["reason"], event["hint"]) == ("gpu1 said ********", "type ******** there")
    assert "s3cr3t" not in paths.state.read_text()


def test_agents_are_ended_even_if_the_final_gathering_raises(
    paths: RunPaths, state: RunSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail_to_finish(_: Coordinator) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Coordinator, "_finish", fail_to_finish)
    monkeypatch.setattr(RunGathering, "needs_agents", True)
    agents: list[Any] = []

    async def run() -> None:
        agents.append(Agent({"hold_ports": [TAKEN]}))
        plan = plan_of()
        run_writer = RunWriter(state, paths)
        with closing(run_writer):
            await Coordinator(
                Launch(plan, {}),
                run_writer,
                RunGathering(plan, paths),
                open_nodes=lambda *_: agents[0],
            ).run()

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(run())
    assert caught.group_contains(RuntimeError, match="a bug")
    assert agents[0].is_closed


SILENCE = {"type": "the agent lives, but does not answer"}


class Link:
    """An agent whose tasks succeed at once.

    At the first order of the type `until` it sends `last`, and then nothing more.
    """

    heard_goodbye, has_ended, heard_at = True, True, 0.0

    def __init__(self, until: str, last: dict[str, Any] | None) -> None:
        self.welcome = msg.Welcome(pid=5, guard_pid=6)
        self.files = SimpleNamespace(is_lost=False, hurry=int)
        self._until, self._last = until, last
        self._outgoing: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    def end_link(self) -> None:
        self._outgoing.put_nowait(self._last)
        self._outgoing.put_nowait(None)

    async def send(self, order: msg.Order) -> None:
        if order.type == self._until:
            if self._last != SILENCE:
                self.end_link()
        elif isinstance(order, msg.HoldPorts):
            ports = {request.task: 2222 for request in order.ports}
            self._outgoing.put_nowait({"type": "ports_held", "ports": ports})
        elif isinstance(order, msg.Start):
            for task in order.tasks:
                named = {"task": task.task, "attempt": order.attempt}
                self._outgoing.put_nowait({"type": "task_started", **named, "pid": 7})
                end = {"exit_code": 0, "signal": None, "ended_by": "itself", "duration_s": 1.0}
                self._outgoing.put_nowait({"type": "task_exited", **named, **end})

    async def __aiter__(self) -> AsyncIterator[msg.Report]:
        while (message := await self._outgoing.get()) is not None:
            yield read_report(message)
        self.files.is_lost = True

    loss = NodeLoss("its agent went away")

    async def close(self, **_: object) -> None:
        self._outgoing.put_nowait(None)


class Node:
    """A backend whose first agent is lost; later agents stay connected."""

    hosts: Mapping[str, str] = {}

    def __init__(self, until: str, last: dict[str, Any] | None) -> None:
        self.links: list[Link] = []
        self._until, self._last = until, last

    async def connect(self, node: NodePlan, **_: object) -> Link:
        self.links.append(Link("" if self.links else self._until, self._last))
        return self.links[-1]

    async def repair(self) -> list[str]:
        return []

    async def __aenter__(self) -> Node:
        return self

    async def __aexit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    "last",
    [
        None,
        {"type": "guard_lost"},
        {"type": "agent_ending", "signal": 15},
        {"type": "refused", "reason": "no room"},
        SILENCE,
    ],
    ids=["gone", "guard_lost", "agent_ending", "refused", "silent"],
)
@pytest.mark.parametrize(
    ("moment", "status", "attempts"),
    [
        ("hold_ports", Status.FAILED, 0),
        ("put back", Status.SUCCEEDED, 2),
        ("start", Status.SUCCEEDED, 2),
    ],
)
def test_an_agent_may_be_lost_at_any_moment_before_its_tasks_run(
    paths: RunPaths,
    state: RunSnapshot,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    status: Status,
    attempts: int,
    last: dict[str, Any] | None,
) -> None:
    """The moment `put back` is the restore of `--resume`, which takes minutes for large files."""
    node: Any = Node(moment, last)
    run_writer = RunWriter(state, paths)
    restarting = asyncio.Event()
    run_writer.on_event = lambda event: restarting.set() if isinstance(event, Restarting) else None
    plan = replace(plan_of(), workdir=str(paths.root), supervision=Supervision(backoff_s=0.0))

    async def put_back(folders: TaskFolders, *_: object) -> int | None:
        if moment == "put back" and len(node.links) == 1:
            node.links[0].end_link()
            await restarting.wait()
        return None

    monkeypatch.setattr(TaskFolders, "put_back", put_back)
    monkeypatch.setattr(orders, "SHOWN_AFTER_S", 0.1)
    monkeypatch.setattr(orders, "ANSWER_S", 0.2)
    monkeypatch.setattr(supervisor, "START_ANSWER_S", 0.2)

    async def run() -> Outcome:
        coordinator = Coordinator(
            Launch(plan, {}, options=LaunchOptions(runs_preflight=False)),
            run_writer,
            RunGathering(plan, paths),
            open_nodes=lambda *_: cast(Any, node),
        )
        async with asyncio.timeout(20):
            return await coordinator.run()

    with closing(run_writer):
        outcome = asyncio.run(run())
    assert (outcome.status, state.attempt) == (status, attempts)


def test_a_run_was_queued_although_its_hosts_have_names_that_the_plan_knew(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is in Kubernetes, whose pods have names before they run."""
    monkeypatch.setattr(scripted.FakeNodes, "reason", "2 pods are Pending")
    agents = {
        name: scripted.Agent(name, str(tmp_path)) for name in (scripted.LOCAL, scripted.REMOTE)
    }
    states = list[str]()
    apply = fold.apply

    def note(state: RunSnapshot, *event: Any) -> None:
        apply(state, *event)
        states.append(str(state.status))

    monkeypatch.setattr(fold, "apply", note)

    ended = scripted.perform(scripted.plan_on_two_nodes(tmp_path), agents, paths)

    assert ended.outcome.exit_code == 0
    assert list(dict.fromkeys(states)) == ["starting", "queued", "running", "succeeded"]
    assert states.index("running") > states.index("starting", states.index("queued"))


def test_the_same_failure_to_preload_on_several_nodes_is_reported_once(
    paths: RunPaths, tmp_path: Path
) -> None:
    failures = [
        {"type": "preload_failed", "error": why} for why in ("a thread", "a thread", "hung")
    ]
    plan = scripted.plan_on_two_nodes(tmp_path, max_restarts=0)
    agents = {
        node: scripted.Agent(node, str(tmp_path), {"trained": script})
        for node, script in ((scripted.LOCAL, failures[:1]), (scripted.REMOTE, failures[1:]))
    }
    ended = scripted.perform(plan, agents, paths)
    events = map(json.loads, paths.events.read_text().splitlines())
    said = [event["message"] for event in events if event["type"] == "hint"]
    whys = [message.rpartition(": ")[2] for message in said if "preloading failed" in message]
    assert sorted(whys) == ["a thread", "hung"]
    assert ended.state.warnings == [], "the summary does not repeat it"
