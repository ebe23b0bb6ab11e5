"""Folds events into the state of a run: every change of the state is an event applied here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfcluster.agent import budgets
from tfcluster.plan.plan import Plan, TaskId
from tfcluster.rundir import chaos, states, trials
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import ProcessIdentity
from tfcluster.rundir.snapshot import RunSnapshot, TaskSnapshot
from tfcluster.rundir.states import Status


def first_state(plan: Plan, paths: RunPaths, identity: ProcessIdentity, now: float) -> RunSnapshot:
    """Return the state of a run before its first event."""
    return RunSnapshot(
        run=paths.run_id,
        name=plan.name,
        status=Status.STARTING,
        tasks=[
            TaskSnapshot(task=str(task.id), node=task.node, address=task.address)
            for task in plan.tasks
        ],
        by_hand={str(task.id): task.address for task in plan.by_hand},
        host=identity.host,
        boot_id=identity.boot_id,
        pid=identity.pid,
        pid_start=identity.start,
        started_at=now,
        spec=plan.spec_path,
        workdir=plan.workdir,
    )


def apply(state: RunSnapshot, event: Event, now: float, paths: RunPaths) -> None:
    """Fold one event into `state`.

    Ignored are events without an effect on it, and late events of an attempt that the same task
    has already left for a newer one.
    """
    change = _CHANGES.get(type(event))
    if change is not None and not _is_outdated(state, event):
        change(state, event, now, paths)
    chaos.apply(state.chaos, event, now)


def _is_outdated(state: RunSnapshot, event: Event) -> bool:
    if isinstance(event, ev.Trial):  # a search keeps the trials of all attempts
        return False
    task, attempt = getattr(event, "task", None), getattr(event, "attempt", None)
    return task is not None and attempt is not None and attempt < state.task(task).attempt


def _move_task(task: TaskSnapshot, trigger: str) -> None:
    task.state = states.after(states.TASK, task.state, trigger)


def _move_node(state: RunSnapshot, node: str, trigger: str) -> None:
    state.nodes[node] = states.after(states.NODE, state.nodes.get(node, "connecting"), trigger)


def _resumed(state: RunSnapshot, event: ev.Resumed, now: float, paths: RunPaths) -> None:
    state.resumed_from = {"run": event.run, "step": event.step}
    if event.checkpoint is not None:
        state.resumed_from["checkpoint"] = event.checkpoint


def _node_connected(
    state: RunSnapshot, event: ev.NodeConnected | ev.NodeReconnected, now: float, paths: RunPaths
) -> None:
    before = state.agents.get(event.node, {})
    agent: dict[str, Any] = {"pid": event.pid, "guard_pid": event.guard_pid}
    if event.identity is not None:
        agent["identity"] = event.identity
    elif "identity" in before and before["pid"] == event.pid:
        agent["identity"] = before["identity"]
    state.agents[event.node] = agent
    _move_node(state, event.node, event.type)


def _node_unreachable(
    state: RunSnapshot, event: ev.NodeUnreachable, now: float, paths: RunPaths
) -> None:
    _move_node(state, event.node, event.type)


def _node_lost(state: RunSnapshot, event: ev.NodeLost, now: float, paths: RunPaths) -> None:
    _move_node(state, event.node, event.type)
    for task in state.tasks:
        if task.node == event.node:
            _move_task(task, event.type)


def _ports_held(state: RunSnapshot, event: ev.PortsHeld, now: float, paths: RunPaths) -> None:
    for task, port in event.ports.items():
        if task in state.by_hand:
            state.by_hand[task] = f"{state.by_hand[task].rpartition(':')[0]}:{port}"
            continue
        snapshot = state.task(task)
        snapshot.address = f"{snapshot.address.rpartition(':')[0]}:{port}"


def _task_started(state: RunSnapshot, event: ev.TaskStarted, now: float, paths: RunPaths) -> None:
    task = state.task(event.task)
    log = paths.task_log(TaskId.parse(event.task), event.attempt)
    if task.attempt:
        _reset_task(task)
    _move_task(task, event.type)
    task.attempt, task.pid = event.attempt, event.pid
    task.started_at, task.log = now, str(log.relative_to(paths.root))
    state.attempt = max(state.attempt, event.attempt)
    if not any(task.state in ("waiting", "restarting") for task in state.tasks):
        state.status = states.after(states.RUN, state.status, "all_started")
        state.waits_for = None


def _reset_task(task: TaskSnapshot) -> None:
    task.exit_code = task.signal = task.ended_by = task.ended_at = task.error = None
    task.frozen_by = task.steps_per_second = task.examples_per_second = None
    task.mean_steps_per_second = None
    task.step = task.epoch = None
    task.metrics = {}


def _restarting(state: RunSnapshot, event: ev.Restarting, now: float, paths: RunPaths) -> None:
    state.restarts.append(event.to_json() | {"time": now})
    if event.task is not None:
        _move_task(state.task(event.task), event.type)
        return
    if event.delay_s:
        state.waits_for = f"a pause of {event.delay_s:.2g} s before attempt {event.attempt}"
    for task in state.tasks:
        stays = task.task.startswith("evaluator") and task.state != "lost"
        if not stays and (event.members is None or task.task in event.members):
            _move_task(task, event.type)
    state.status = states.after(states.RUN, state.status, event.type)


def _task_frozen(state: RunSnapshot, event: ev.TaskFrozen, now: float, paths: RunPaths) -> None:
    state.task(event.task).frozen_by = event.signal


def _task_thawed(state: RunSnapshot, event: ev.TaskThawed, now: float, paths: RunPaths) -> None:
    state.task(event.task).frozen_by = None


def _task_ready(state: RunSnapshot, event: ev.TaskReady, now: float, paths: RunPaths) -> None:
    _move_task(state.task(event.task), "joined")


def _progress(state: RunSnapshot, event: ev.Progress, now: float, paths: RunPaths) -> None:
    task = state.task(event.task)
    _move_task(task, "joined")
    task.step, task.epoch, task.metrics = event.step, event.epoch, dict(event.metrics)
    task.steps_per_second = event.steps_per_second or task.steps_per_second
    task.mean_steps_per_second = event.mean_steps_per_second or task.mean_steps_per_second
    task.examples_per_second = event.examples_per_second or task.examples_per_second


def _task_error(state: RunSnapshot, event: ev.TaskError, now: float, paths: RunPaths) -> None:
    facts = event.to_json()
    state.task(event.task).error = {
        name: facts[name] for name in facts.keys() - {"type", "task", "attempt"}
    }


def _trial(state: RunSnapshot, event: ev.Trial, now: float, paths: RunPaths) -> None:
    trials.apply(state.trials, event, now)
    state.best_trial = trials.best(state.trials)


def _log_lost(state: RunSnapshot, event: ev.LogLost, now: float, paths: RunPaths) -> None:
    state.task(event.task).log_lost_bytes += event.bytes


def _task_stopping(state: RunSnapshot, event: ev.TaskStopping, now: float, paths: RunPaths) -> None:
    _move_task(state.task(event.task), event.type)


def _task_exited(state: RunSnapshot, event: ev.TaskExited, now: float, paths: RunPaths) -> None:
    task = state.task(event.task)
    task.exit_code, task.signal, task.ended_by = event.exit_code, event.signal, event.ended_by
    task.peak_rss_bytes, task.ended_at, task.frozen_by = event.peak_rss_bytes, now, None
    failed = "ended_by_us" if event.ended_by == "tfcluster" else "exited_badly"
    _move_task(task, "exited_well" if event.exit_code == 0 else failed)


def _warned(state: RunSnapshot, event: ev.Warned, now: float, paths: RunPaths) -> None:
    if event.message in state.warnings or len(state.warnings) > budgets.WARNINGS:
        return
    is_full = len(state.warnings) == budgets.WARNINGS
    more = f"further warnings are only in {paths.events}"
    state.warnings.append(more if is_full else event.message)


def _diagnosis(state: RunSnapshot, event: ev.Diagnosis, now: float, paths: RunPaths) -> None:
    state.diagnosis = {
        "root_cause": dict(event.root_cause),
        "collateral": list(event.collateral),
        "attempt": event.attempt,
    }


def _run_stopping(state: RunSnapshot, event: ev.RunStopping, now: float, paths: RunPaths) -> None:
    state.status = states.after(states.RUN, state.status, event.type)
    state.waits_for = None
    state.stop_by = now + event.grace_s


def _run_finished(state: RunSnapshot, event: ev.RunFinished, now: float, paths: RunPaths) -> None:
    state.status, state.exit_code, state.ended_at = Status(event.status), event.exit_code, now
    state.reason, state.hint = event.reason, event.hint
    state.waits_for = state.gathering = None
    for node in state.nodes:
        _move_node(state, node, event.type)
    for task in state.tasks:
        _move_task(task, event.type)


_CHANGES: dict[type[Event], Callable[[RunSnapshot, Any, float, RunPaths], None]] = {
    ev.Resumed: _resumed,
    ev.NodeConnected: _node_connected,
    ev.NodeReconnected: _node_connected,
    ev.NodeUnreachable: _node_unreachable,
    ev.NodeLost: _node_lost,
    ev.PortsHeld: _ports_held,
    ev.TaskStarted: _task_started,
    ev.TaskReady: _task_ready,
    ev.TaskFrozen: _task_frozen,
    ev.TaskThawed: _task_thawed,
    ev.Restarting: _restarting,
    ev.Progress: _progress,
    ev.TaskError: _task_error,
    ev.Trial: _trial,
    ev.LogLost: _log_lost,
    ev.TaskStopping: _task_stopping,
    ev.TaskExited: _task_exited,
    ev.Warned: _warned,
    ev.Diagnosis: _diagnosis,
    ev.RunStopping: _run_stopping,
    ev.RunFinished: _run_finished,
}
