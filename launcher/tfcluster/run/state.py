"""What is, folded from what happened: every change of a run's state is an event applied here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfcluster.plan.plan import Plan, TaskId
from tfcluster.run import events as ev
from tfcluster.run.events import Event, Status
from tfcluster.run.identity import ProcessIdentity
from tfcluster.run.paths import RunPaths
from tfcluster.run.snapshot import RunSnapshot, TaskSnapshot


def first_state(plan: Plan, paths: RunPaths, identity: ProcessIdentity, now: float) -> RunSnapshot:
    """A run before anything has happened."""
    return RunSnapshot(
        run=paths.run_id,
        name=plan.name,
        status=Status.STARTING,
        tasks=[
            TaskSnapshot(task=str(task.id), node=task.node, address=task.address)
            for task in plan.tasks
        ],
        host=identity.host,
        boot_id=identity.boot_id,
        pid=identity.pid,
        pid_start=identity.start,
        started_at=now,
        spec=plan.spec_path,
        workdir=plan.nodes[0].workdir,
    )


def apply(state: RunSnapshot, event: Event, now: float, paths: RunPaths) -> None:
    """Fold one event into `state`; events without an effect on it pass unseen."""
    if (change := _CHANGES.get(type(event))) is not None:
        change(state, event, now, paths)


def task_of(state: RunSnapshot, task: str) -> TaskSnapshot:
    return next(snapshot for snapshot in state.tasks if snapshot.task == task)


def _node_connected(
    state: RunSnapshot, event: ev.NodeConnected, now: float, paths: RunPaths
) -> None:
    state.agents[event.node] = {"pid": event.pid, "guard_pid": event.guard_pid}


def _node_lost(state: RunSnapshot, event: ev.NodeLost, now: float, paths: RunPaths) -> None:
    for task in state.tasks:
        if task.node == event.node and task.pid is not None and task.ended_at is None:
            task.state = "lost"


def _ports_held(state: RunSnapshot, event: ev.PortsHeld, now: float, paths: RunPaths) -> None:
    for task, port in event.ports.items():
        snapshot = task_of(state, task)
        snapshot.address = f"{snapshot.address.rpartition(':')[0]}:{port}"


def _task_started(state: RunSnapshot, event: ev.TaskStarted, now: float, paths: RunPaths) -> None:
    task = task_of(state, event.task)
    log = paths.task_log(TaskId.parse(event.task), event.attempt)
    task.state, task.attempt, task.pid = "starting", event.attempt, event.pid
    task.started_at, task.log = now, str(log.relative_to(paths.root))
    state.attempt = event.attempt
    if all(task.pid is not None for task in state.tasks) and state.status is Status.STARTING:
        state.status = Status.RUNNING


def _task_ready(state: RunSnapshot, event: ev.TaskReady, now: float, paths: RunPaths) -> None:
    _to_running(task_of(state, event.task))


def _progress(state: RunSnapshot, event: ev.Progress, now: float, paths: RunPaths) -> None:
    task = task_of(state, event.task)
    _to_running(task)
    task.step, task.epoch, task.metrics = event.step, event.epoch, dict(event.metrics)
    task.steps_per_second = event.steps_per_second or task.steps_per_second
    task.examples_per_second = event.examples_per_second or task.examples_per_second


def _to_running(task: TaskSnapshot) -> None:
    if task.state == "starting":
        task.state = "running"


def _task_error(state: RunSnapshot, event: ev.TaskError, now: float, paths: RunPaths) -> None:
    facts = event.to_json()
    task_of(state, event.task).error = {
        name: facts[name] for name in facts.keys() - {"type", "task", "attempt"}
    }


def _log_lost(state: RunSnapshot, event: ev.LogLost, now: float, paths: RunPaths) -> None:
    task_of(state, event.task).log_lost_bytes += event.bytes


def _task_stopping(state: RunSnapshot, event: ev.TaskStopping, now: float, paths: RunPaths) -> None:
    task = task_of(state, event.task)
    if task.state != "lost":
        task.state = "stopping"


def _task_exited(state: RunSnapshot, event: ev.TaskExited, now: float, paths: RunPaths) -> None:
    task = task_of(state, event.task)
    task.exit_code, task.signal, task.ended_by = event.exit_code, event.signal, event.ended_by
    task.peak_rss_bytes, task.ended_at = event.peak_rss_bytes, now
    if event.exit_code == 0:
        task.state = "succeeded"
    else:
        task.state = "stopped" if event.ended_by == "tfcluster" else "failed"


def _warned(state: RunSnapshot, event: ev.Warned, now: float, paths: RunPaths) -> None:
    state.warnings.append(event.message)


def _diagnosis(state: RunSnapshot, event: ev.Diagnosis, now: float, paths: RunPaths) -> None:
    state.diagnosis = {"root_cause": dict(event.root_cause), "collateral": list(event.collateral)}


def _run_stopping(state: RunSnapshot, event: ev.RunStopping, now: float, paths: RunPaths) -> None:
    state.status = Status.STOPPING
    state.stop_by = now + event.grace_s


def _run_finished(state: RunSnapshot, event: ev.RunFinished, now: float, paths: RunPaths) -> None:
    state.status, state.exit_code, state.ended_at = Status(event.status), event.exit_code, now


_CHANGES: dict[type[Event], Callable[[RunSnapshot, Any, float, RunPaths], None]] = {
    ev.NodeConnected: _node_connected,
    ev.NodeLost: _node_lost,
    ev.PortsHeld: _ports_held,
    ev.TaskStarted: _task_started,
    ev.TaskReady: _task_ready,
    ev.Progress: _progress,
    ev.TaskError: _task_error,
    ev.LogLost: _log_lost,
    ev.TaskStopping: _task_stopping,
    ev.TaskExited: _task_exited,
    ev.Warned: _warned,
    ev.Diagnosis: _diagnosis,
    ev.RunStopping: _run_stopping,
    ev.RunFinished: _run_finished,
}
