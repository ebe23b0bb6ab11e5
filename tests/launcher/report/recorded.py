"""Run folders as a coordinator leaves them: recorded events, plan, spec, logs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.launcher.conftest import plan_of

from tfcluster import typed_json
from tfcluster.plans.plan import Command, EnvVar, Interpreter, Plan
from tfcluster.rundir import events as ev
from tfcluster.rundir import run_writer
from tfcluster.rundir.events import Event
from tfcluster.rundir.fold import first_state
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import this_process

START = 1_700_000_000.0


def a_plan(*tasks: str, **more: Any) -> Plan:
    """Return a plan with a Python, a secret and an ordinary variable."""
    plan = plan_of(*tasks, **more)
    env = (
        EnvVar("WANDB_API_KEY", "hunter2", "job.env", secret=True),
        EnvVar("LEVEL", "1 < 2", "job.env"),
    )
    command = Command(("python", "train.py", "--lr", "0.1"), env, "/job")
    python = Interpreter("/usr/bin/python3", "PATH", "3.12.1", {"tensorflow": "2.21.0"})
    return replace(
        plan,
        nodes=tuple(replace(node, interpreter=python) for node in plan.nodes),
        tasks=tuple(replace(task, command=command) for task in plan.tasks),
    )


def record(
    home: Path,
    events: Iterable[Event],
    *,
    name: str = "demo",
    suffix: str = "k7f3",
    plan: Plan | None = None,
    spec: Mapping[str, Any] | None = None,
    logs: Mapping[str, str] | None = None,
) -> RunPaths:
    """Return the folder of a run in which an event happened every second.

    `logs`: file name below ``logs/attempt-1`` → its text.
    """
    paths = run_writer.make(f"{name}-20260914-153012-{suffix}", home)
    plan = plan or a_plan(name=name)
    clock = itertools.count(START)
    writer = run_writer.RunWriter(
        first_state(plan, paths, this_process(), START), paths, clock=lambda: next(clock)
    )
    for event in events:
        writer.record(event)
        if isinstance(event, ev.CheckpointGathered):
            writer.state.checkpoints.append({"path": event.path, "step": event.step})
    writer.close()
    run_writer.require_json(paths.plan, typed_json.to_json(plan))
    paths.spec.write_text(json.dumps(spec or {"job": {"script": "train.py", "args": ["--lr=0.1"]}}))
    for file, text in (logs or {}).items():
        paths.attempt_logs(1).mkdir(parents=True, exist_ok=True)
        (paths.attempt_logs(1) / file).write_text(text)
    return paths


def starts(tasks: Sequence[str] = ("worker:0", "worker:1"), attempt: int = 1) -> list[Event]:
    begun = [ev.TaskStarted(task=t, attempt=attempt, node="local", pid=7) for t in tasks]
    return [*begun, *(ev.TaskReady(task=task, attempt=attempt) for task in tasks)]


def steps(
    first: int, last: int, *, attempt: int = 1, scale: float = 1.0, task: str = "worker:0"
) -> list[Event]:
    return [
        ev.Progress(
            task=task,
            attempt=attempt,
            step=step,
            metrics={"loss": scale / step, "val_loss": scale / step + 0.1, "accuracy": 0.5},
            examples_per_second=100.0 * scale,
            steps_per_second=10.0,
            mean_steps_per_second=8.0,
        )
        for step in range(first, last + 1)
    ]


def success(**more: Any) -> list[Event]:
    """Return the events of a run that succeeds after a restart."""
    used = ev.Usage(
        node="local", tasks={"worker:0": {"rss_bytes": 800_000_000}, "worker:1": {"cores": 1}}
    )
    return [
        ev.RunStarted(version="9.8.7", run="demo"),
        *starts(),
        *steps(1, 5, **more),
        used,
        ev.CheckpointGathered(path="checkpoints/ckpt-4", step=4, kind="tf_checkpoint"),
        ev.TaskExited(task="worker:1", attempt=1, exit_code=None, signal=9),
        ev.Restarting(reason="worker:1: killed by SIGKILL", attempt=2, of=4, from_step=4),
        *starts(attempt=2),
        *steps(4, 9, attempt=2, **more),
        *(ev.TaskExited(task=f"worker:{i}", attempt=2, exit_code=0) for i in (0, 1)),
        ev.RunFinished(status="succeeded", exit_code=0),
    ]


def failure(reason: str = "ValueError: bad batch", *, metric: str = "loss") -> list[Event]:
    cause = {"task": "worker:1", "reason": reason, "hint": "fix the batch", "exit_code": 1}
    progress = ev.Progress(task="worker:0", attempt=1, step=1, metrics={metric: 2.0})
    return [
        ev.RunStarted(version="9.8.7", run="demo"),
        *starts(),
        progress,
        ev.TaskError(task="worker:1", attempt=1, exception="ValueError", message=reason),
        ev.TaskExited(task="worker:1", attempt=1, exit_code=1),
        ev.TaskExited(task="worker:0", attempt=1, exit_code=None, signal=15, ended_by="tfcluster"),
        ev.Diagnosis(root_cause=cause | {"attempt": 1}, collateral=("worker:0",), attempt=1),
        ev.RunFinished(status="failed", exit_code=1),
    ]
