"""Fixtures for tests without agents: a plan made by hand, and run folders."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tfcluster.plans.plan import (
    CheckpointPlan,
    Command,
    JobKind,
    NodePlan,
    Plan,
    Supervision,
    TaskId,
    TaskPlan,
)
from tfcluster.rundir import registry, run_writer
from tfcluster.rundir.fold import first_state
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import this_process
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status

PlanOf = Callable[..., Plan]
MakeRun = Callable[..., RunPaths]
Tfcluster = Callable[..., "Done"]


@dataclass(frozen=True, slots=True)
class Done:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _nothing_asked_before() -> None:
    """Forget the schedulers that an earlier test in this process has asked: commands name them."""
    if (job_watch := sys.modules.get("tfcluster.backends.job_watch")) is not None:
        job_watch.forget()


def plan_of(
    *tasks: str, kind: JobKind = "training", hooks: bool = True, name: str = "demo"
) -> Plan:
    """Return a plan for these tasks (two workers if none is named) on this machine."""
    found = [TaskId.parse(task) for task in tasks or ("worker:0", "worker:1")]
    command = Command(("python", "main.py"), (), "/")
    return Plan(
        name=name,
        spec_path=None,
        kind=kind,
        strategy="multi_worker_mirrored",
        nodes=(NodePlan("local", "local", None, "/job"),),
        tasks=tuple(
            TaskPlan(task, "local", "127.0.0.1", 0, command, serves=task.job == "ps")
            for task in found
        ),
        prepare={},
        supervision=Supervision(),
        checkpoints=CheckpointPlan(),
        hooks=hooks,
    )


def spread(plan: Plan) -> Plan:
    """Return `plan` with a node of its own for each task, called like it: ``worker-1``."""
    nodes = tuple(NodePlan(task.id.file_name, "local", None, "/job") for task in plan.tasks)
    tasks = tuple(replace(task, node=task.id.file_name) for task in plan.tasks)
    return replace(plan, nodes=nodes, tasks=tasks)


def moved(plan: Plan, *tasks: str, to: str = "far") -> Plan:
    """Return `plan` with the tasks on another machine."""
    nodes = (*plan.nodes, NodePlan(to, "ssh", None, "/job"))
    placed = tuple(replace(t, node=to if str(t.id) in tasks else t.node) for t in plan.tasks)
    return replace(plan, nodes=nodes, tasks=placed)


@pytest.fixture(scope="session", autouse=True)
def own_runtime_dir() -> Iterator[None]:
    """Give the sockets of these tests a folder of this process: others test beside it."""
    with (
        tempfile.TemporaryDirectory(prefix="tfc-", dir="/tmp") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("XDG_RUNTIME_DIR", folder)
        yield


@pytest.fixture
def home_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a home folder for this test and set a runtime folder with a short path for sockets."""
    root = Path(tempfile.mkdtemp(prefix="tfc-", dir="/tmp"))
    monkeypatch.setenv("TFCLUSTER_HOME", str(root / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(root))
    yield root / "home"
    shutil.rmtree(root)


@pytest.fixture
def paths(home_dir: Path) -> RunPaths:
    return run_writer.make("demo-20260914-153012-k7f3", home_dir)


@pytest.fixture
def state(paths: RunPaths) -> RunSnapshot:
    return first_state(plan_of(), paths, this_process(), 100.0)


@pytest.fixture
def make_run(home_dir: Path) -> MakeRun:
    """Return a function that makes a run folder with a state.

    The coordinator of the run is this process, so the run may be live.
    """

    def make(
        name: str = "demo",
        *,
        status: Status = Status.SUCCEEDED,
        started: float = 100.0,
        spec: str | None = None,
        exit_code: int | None = 0,
        pid: int | None = None,
        background: bool = False,
    ) -> RunPaths:
        found = run_writer.make(registry.new_run_id(name, started), home_dir)
        state = first_state(plan_of(name=name), found, this_process(), started)
        state.status, state.spec = status, spec
        state.pid, state.background = pid or state.pid, background
        if status.is_final and status is not Status.LOST:
            state.ended_at, state.exit_code = started + 10, exit_code
            run_writer.release_reserve(found)
        run_writer.write_json(found.state, state.to_json())
        return found

    return make


@pytest.fixture
def tfcluster(
    home_dir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Tfcluster:
    """Return a function that runs a command line in this process."""
    from tfcluster.cli.main import main

    def run(*args: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["tfcluster", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capfd.readouterr())

    return run
