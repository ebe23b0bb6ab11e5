"""`doctor` reports agents that refuse, exit or lose their guard, and does not wait for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.documentation import ROOT
from tests.launcher.conftest import plan_of
from tests.launcher.coordinator.test_attempts import FakeHub
from tests.launcher.messages import read_report

from tfcluster.agent.catalogue import Order, Report, StartFailed, Welcome
from tfcluster.backends.jobs import Obstacle, Outlook, Submission
from tfcluster.discovery import planning
from tfcluster.errors import SetupError
from tfcluster.node_loss import NodeLoss
from tfcluster.nodes.orders import Answers
from tfcluster.plans.plan import NodePlan, Plan
from tfcluster.preflight import doctor
from tfcluster.preflight.preflight_report import Finding, PreflightReport
from tfcluster.preflight.probes import probe_nodes
from tfcluster.rundir.paths import RunPaths
from tfcluster.spec.sections import Runtime
from tfcluster.typed_json import from_json

ENOSPC = "hold_ports: OSError: [Errno 28] No space left on device"
REFUSED = "its agent could not carry out an order"
HELD = {"type": "ports_held", "ports": {"worker:0": 2222, "worker:1": 2223}}
Messages = dict[str, list[dict[str, Any]]]


class Agent:
    """A node and its agent, which answers each kind of order with fixed messages.

    The message `gone` ends its link.
    """

    hosts: Mapping[str, str] = {}
    heard_goodbye, has_ended, heard_at = True, False, 0.0

    def __init__(self, answers: Messages) -> None:
        self.welcome = Welcome(pid=5, guard_pid=6)
        self.files = SimpleNamespace(is_lost=False)
        self.is_closed = False
        self._answers = answers
        self._outgoing: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def __aenter__(self) -> Agent:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def connect(self, node: NodePlan, **_: object) -> Agent:
        return self

    async def send(self, order: Order) -> None:
        for answer in self._answers.get(order.type, ()):
            self._outgoing.put_nowait(answer)

    async def __aiter__(self) -> AsyncIterator[Report]:
        while (message := await self._outgoing.get())["type"] != "gone":
            yield read_report(message)
        self.files.is_lost = True

    loss = NodeLoss("its agent went away (killed)")

    async def close(self, **_: object) -> tuple[str, ...]:
        self.is_closed = True
        self._outgoing.put_nowait({"type": "gone"})
        return ()


Examine = Callable[[Messages], PreflightReport]


@pytest.fixture
def examine(tmp_path: Path) -> Examine:
    def run(answers: Messages) -> PreflightReport:
        async def within_seconds() -> PreflightReport:
            async with asyncio.timeout(60):
                plan = replace(plan_of(), workdir=str(tmp_path))
                agent: Any = Agent(answers)
                return await doctor._examine_nodes(
                    plan, tmp_path, deep=False, open_nodes=lambda *_: agent
                )

        return asyncio.run(within_seconds())

    return run


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (
            {"type": "refused", "reason": ENOSPC},
            f"its agent could not carry out an order ({ENOSPC})",
        ),
        ({"type": "guard_lost"}, "the guard beside its agent was killed"),
        ({"type": "gone"}, "its agent went away (killed)"),
    ],
    ids=str,
)
def test_an_agent_that_cannot_hold_ports_is_a_finding_with_its_reason(
    examine: Examine, message: dict[str, Any], error: str
) -> None:
    (finding,) = examine({"hold_ports": [message]}).fatal
    assert (finding.node, finding.what) == ("local", error)


def test_a_node_that_is_lost_just_before_the_probe_is_a_finding(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    lines = FakeHub(paths)
    lines.keep("local", StartFailed(task="preflight", attempt=0, error="it went away"))

    async def until(condition: Callable[[], bool], *, at: float | None = None) -> None:
        assert condition(), "no more messages will come"

    report = asyncio.run(probe_nodes(plan_of(), paths, Answers(lines, until), ["local"], {}))
    assert [finding.what for finding in report.fatal] == ["the checks could not run: it went away"]


class Scheduler:
    """A scheduler that takes every job, and allocates nodes whose examination is `inner`."""

    def __init__(self, inner: PreflightReport | SetupError, *obstacles: Obstacle) -> None:
        self.inner, self.obstacles = inner, obstacles
        self.ran: list[list[str]] = []

    def check(self, job: Submission, *, thorough: bool) -> Outlook:
        assert thorough
        assert (job.nodes, job.tasks_per_node) == (2, 1)
        return Outlook(self.obstacles, "it would start now")

    def run_inside(self, job: Submission, argv: list[str], folder: Path, *, tell: object) -> None:
        self.ran.append(argv)
        if isinstance(self.inner, SetupError):
            raise self.inner
        given = json.loads((folder / "given.json").read_text())
        assert from_json(Plan, given["plan"]).nodes
        assert Runtime.model_validate(given["runtime"]) == job.runtime
        assert given["run_id"] == job.run_id
        (folder / "report.json").write_text(json.dumps(self.inner.to_json()))


@pytest.fixture
def examine_job(monkeypatch: pytest.MonkeyPatch) -> Callable[..., PreflightReport]:
    def run(scheduler: Scheduler, *, deep: bool = True) -> PreflightReport:
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        monkeypatch.setattr("tfcluster.backends.jobs.of_backend", lambda backend: scheduler)
        planned = planning.plan(str(ROOT / "cluster_specs/slurm-2n.json"))
        return doctor.examine(planned, deep=deep)

    return run


def test_a_scheduler_is_examined_without_an_allocation(
    examine_job: Callable[..., PreflightReport],
) -> None:
    scheduler = Scheduler(PreflightReport((), (), ()))
    report = examine_job(scheduler, deep=False)
    assert (report.nodes, report.notes, scheduler.ran) == (("slurm",), ("it would start now",), [])


def test_a_deep_examination_includes_nodes_of_an_allocation(
    examine_job: Callable[..., PreflightReport],
) -> None:
    finding = Finding("node-1", "GPUs", "none", "another node")
    report = examine_job(Scheduler(PreflightReport(("node-0", "node-1"), (), (finding,))))
    assert (report.nodes, report.fatal) == (("slurm", "node-0", "node-1"), (finding,))


def test_nodes_that_would_never_be_allocated_are_not_waited_for(
    examine_job: Callable[..., PreflightReport],
) -> None:
    scheduler = Scheduler(PreflightReport((), (), ()), Obstacle("limits", "too long", "less"))
    assert [f.what for f in examine_job(scheduler).fatal] == ["too long"]
    assert scheduler.ran == []


def test_an_allocation_that_fails_is_a_finding(
    examine_job: Callable[..., PreflightReport],
) -> None:
    (finding,) = examine_job(Scheduler(SetupError("revoked", fix="again"))).fatal
    assert (finding.node, finding.check, finding.what) == ("slurm", "nodes", "revoked")
