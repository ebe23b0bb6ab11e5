"""Folds events into the state of a run: every change of the state is an event applied here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tfcluster.agent import budgets
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.rundir import chaos, states
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event
from tfcluster.rundir.figures import SPEEDS, is_of_epoch_end, share_speed
from tfcluster.rundir.goodput import Goodput
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import ProcessIdentity
from tfcluster.rundir.snapshot import RunSnapshot, TaskSnapshot, is_done_trial
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
        is_synchronous=plan.is_synchronous,
        goodput=Goodput(since=now, until=now) if plan.kind == "training" else None,
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
    changes = _Changes(state, now + state.clock_ahead_s, paths)
    change = getattr(changes, event.type, None)
    if change is None or not _is_outdated(state, event):
        if change is not None:
            change(event)
        if state.goodput is not None:
            _count_time(state.goodput, event, state.status, changes.now)
    if state.chaos or isinstance(event, ev.ChaosInjected):
        chaos.apply(state.chaos, event, now)


def _count_time(goodput: Goodput, event: Event, status: Status, now: float) -> None:
    """Count the time until `event`; `status`: the run's after it."""
    match event:
        case ev.Progress(task=task, step=step) if not task.startswith("evaluator:"):
            goodput.take_step(task, step, now, per_call=event.steps_per_execution or 1)
        case ev.TaskStarted():
            goodput.start_process(now)
        case ev.TaskExited():
            goodput.exited_at = now
        case ev.Stalled(silent_s=silent_s):
            goodput.stall(silent_s, now)
        case ev.StallEnded():
            goodput.end_stall(now)
        case ev.Suspended(seconds=seconds):
            goodput.suspend(seconds, now)
        case ev.Restarting(task=task) if task is None or task == goodput.task:
            goodput.interrupt(now)
        case ev.RunQueued() if status is Status.QUEUED:
            goodput.enter_queue(now)
        case ev.RunContinued():
            goodput.enter_queue(goodput.until)  # nothing has run since then
            goodput.leave_queue(now)
        case ev.NodesAllocated():
            goodput.leave_queue(now)
    goodput.until = now


def _is_outdated(state: RunSnapshot, event: Event) -> bool:
    if isinstance(event, ev.Trial):  # a search keeps the trials of all attempts
        return False
    task, attempt = getattr(event, "task", None), getattr(event, "attempt", None)
    return task is not None and attempt is not None and attempt < state.task(task).attempt


@dataclass(frozen=True, slots=True)
class _Changes:
    """The changes of a state; each method is named after the type of its event."""

    state: RunSnapshot
    now: float
    """The time by the clock of the machine that started the run."""
    paths: RunPaths

    def resumed(self, event: ev.Resumed) -> None:
        self.state.resumed_from = {"run": event.run, "step": event.step}
        if event.checkpoint is not None:
            self.state.resumed_from["checkpoint"] = event.checkpoint

    def node_connected(self, event: ev.NodeConnected | ev.NodeReconnected) -> None:
        before = self.state.agents.get(event.node, {})
        agent: dict[str, Any] = {"pid": event.pid, "guard_pid": event.guard_pid}
        if event.identity is not None:
            agent["identity"] = event.identity
        elif "identity" in before and before["pid"] == event.pid:
            agent["identity"] = before["identity"]
        self.state.agents[event.node] = agent
        self._move_node(event.node, event.type)

    node_reconnected = node_connected

    def job_submitted(self, event: ev.JobSubmitted) -> None:
        facts = {"backend": event.backend, "id": event.id, "cluster": event.cluster}
        self.state.job = {**facts, "restarts": 0}

    def job_joined(self, event: ev.JobJoined) -> None:
        facts = {"backend": event.backend, "id": event.id, "restarts": event.restarts}
        self.state.allocation = facts

    def run_started(self, event: ev.RunStarted) -> None:
        self.state.version = event.version
        self.state.began_at = self.now - self.state.clock_ahead_s

    def run_continued(self, event: ev.RunContinued) -> None:
        """Forget the nodes of the former start, on which nothing lives any more."""
        self._move_run(event.type)
        state = self.state
        for job in filter(None, (state.job, state.allocation)):
            job["restarts"] = event.restarts
        state.continued = {"attempt": event.attempt, "ran_s": event.ran_s}
        state.agents, state.nodes, state.leases = {}, {}, {}
        state.waits_for = state.queue_reason = None
        state.stop_by = state.gathering = state.tensorboard = None
        state.stall, state.alerts, state.step_verdict = None, {}, None
        state.ended_at = state.exit_code = state.reason = state.hint = None
        for task in state.tasks:
            _move_task(task, event.type)
            task.frozen_by = task.phase = None
            _set_usage(task, {})

    def run_queued(self, event: ev.RunQueued) -> None:
        self._move_run(event.type)
        self.state.gathering = self.state.tensorboard = None  # they ended with the coordinator
        self.state.queue_reason, self.state.waits_for = event.reason, f"nodes: {event.reason}"

    def nodes_allocated(self, event: ev.NodesAllocated) -> None:
        self._move_run(event.type)
        self.state.waits_for = self.state.queue_reason = None
        for task, address in event.addresses.items():
            self.state.task(task).address = address

    def node_unreachable(self, event: ev.NodeUnreachable) -> None:
        self._move_node(event.node, event.type)

    def node_lost(self, event: ev.NodeLost) -> None:
        self._move_node(event.node, event.type)
        for task in self.state.tasks:
            if task.node == event.node:
                _move_task(task, event.type)
                _set_usage(task, {})

    def ports_held(self, event: ev.PortsHeld) -> None:
        for task, port in event.ports.items():
            if (address := self.state.by_hand.get(task)) is not None:
                self.state.by_hand[task] = _with_port(address, port)
            else:
                snapshot = self.state.task(task)
                snapshot.address = _with_port(snapshot.address, port, host=event.host)

    def task_started(self, event: ev.TaskStarted) -> None:
        task = self.state.task(event.task)
        log = self.paths.task_log(TaskId.parse(event.task), event.attempt)
        task.begin()
        _move_task(task, event.type)
        task.attempt, task.pid = event.attempt, event.pid
        task.started_at, task.log = self.now, str(log.relative_to(self.paths.root))
        self.state.attempt = max(self.state.attempt, event.attempt)
        if not any(task.state in ("waiting", "restarting") for task in self.state.tasks):
            if self.state.status is Status.RESTARTING:
                self.state.diagnosis = None  # the run has recovered from that failure
            self._move_run("all_started")
            self.state.waits_for = None

    def stalled(self, event: ev.Stalled) -> None:
        self._move_run(event.type)
        for task in self.state.tasks:
            task.steps_per_second = task.examples_per_second = None
        self.state.stall = {
            "since": self.now - event.silent_s,
            "what": event.what,
            "causes": list(event.causes),
            "tasks": dict(event.tasks),
        }

    def stall_ended(self, event: ev.StallEnded) -> None:
        self._move_run(event.type)
        self.state.stall = None

    def restarting(self, event: ev.Restarting) -> None:
        self.state.restarts.append(event.facts() | {"time": self.now})
        if event.task is not None:
            _move_task(self.state.task(event.task), event.type)
            return
        if event.delay_s:
            self.state.waits_for = (
                f"a pause of {event.delay_s:.2g} s before attempt {event.attempt}"
            )
        for task in self.state.tasks:
            task.step_parts = {}  # also of one that a smaller gang leaves out
            stays = not TaskId.parse(task.task).is_in_gang and task.state != "lost"
            if event.members is not None and task.task not in event.members:
                # It was among them in an earlier event of this restart, before its node was gone.
                _move_task(task, "node_lost" if self._has_lost_node(task) else "left_out")
            elif not stays:
                _move_task(task, event.type)
        self._move_run(event.type)
        self.state.stall = None
        self.state.alerts, self.state.step_verdict = {}, None  # what still holds is found again

    def task_frozen(self, event: ev.TaskFrozen) -> None:
        self.state.task(event.task).frozen_by = event.signal

    def task_thawed(self, event: ev.TaskThawed) -> None:
        self.state.task(event.task).frozen_by = None

    def task_phase(self, event: ev.TaskPhase) -> None:
        task = self.state.task(event.task)
        task.phase = event.name or None
        task.has_joined |= event.waits_for_peers is True

    def task_devices(self, event: ev.TaskDevices) -> None:
        self.state.task(event.task).devices = event.devices

    def task_ready(self, event: ev.TaskReady) -> None:
        task = self.state.task(event.task)
        task.phase = None
        _move_task(task, "joined")

    def progress(self, event: ev.Progress) -> None:
        task = self.state.task(event.task)
        _move_task(task, "joined")
        task.phase = None
        if task.step is None and task.started_at is not None:
            task.first_step_s = self.now - task.started_at
        is_same_training = task.step is None or event.step >= task.step
        task.metrics = _merged(task.metrics if is_same_training else {}, event.metrics)
        task.step = event.step
        for name in ("epoch", "epochs", "steps_per_epoch", "total_steps", *SPEEDS):
            setattr(task, name, getattr(event, name) or getattr(task, name))
        share_speed(self.state, task)

    def task_error(self, event: ev.TaskError) -> None:
        self.state.task(event.task).error = _facts(event)

    def tensorboard_started(self, event: ev.TensorboardStarted) -> None:
        self.state.tensorboard = event.url

    def trial(self, event: ev.Trial) -> None:
        """Fold a report into its trial; fields that it does not have keep their values.

        A trial that is handed out again, because its tuner was killed or because it failed and is
        tried again, is the same trial: it begins again.
        """
        trials = self.state.trials
        trial = next((known for known in trials if known["id"] == event.id), None)
        if trial is None:
            trials.append(trial := {"id": event.id})
        trial |= _facts(event)
        if event.status == "RUNNING":
            for name in ("score", "best_step", "message", "ended_at"):
                trial.pop(name, None)
            trial["started_at"] = self.now
        elif event.status is not None:
            trial["ended_at"] = self.now
        self.state.best_trial = _best(trials)

    def usage(self, event: ev.Usage) -> None:
        for name, used in event.tasks.items():
            _set_usage(self.state.task(name), used)

    def log_lost(self, event: ev.LogLost) -> None:
        self.state.task(event.task).log_lost_bytes += event.bytes

    def task_stopping(self, event: ev.TaskStopping) -> None:
        _move_task(self.state.task(event.task), event.type)

    def task_exited(self, event: ev.TaskExited) -> None:
        task = self.state.task(event.task)
        task.exit_code, task.signal, task.ended_by = event.exit_code, event.signal, event.ended_by
        task.peak_rss_bytes, task.ended_at = event.peak_rss_bytes, self.now
        task.frozen_by = task.phase = None
        _set_usage(task, {})
        failed = "ended_by_us" if event.ended_by == "tfcluster" else "exited_badly"
        _move_task(task, "exited_well" if event.exit_code == 0 else failed)

    def warned(self, event: ev.Warned) -> None:
        if event.message in self.state.warnings or len(self.state.warnings) > budgets.WARNINGS:
            return
        is_full = len(self.state.warnings) == budgets.WARNINGS
        more = f"further warnings are only in {self.paths.events}"
        self.state.warnings.append(more if is_full else event.message)

    def alert(self, event: ev.Alert) -> None:
        self.state.alerts[event.kind] = event.message

    def step_times(self, event: ev.StepTimes) -> None:
        task = self.state.task(event.task)
        task.step_parts = {name: value / event.steps for name, value in event.parts.items()}

    def step_verdict(self, event: ev.StepVerdict) -> None:
        verdict = event.facts() | {"causes": list(event.causes), "since": self.now}
        self.state.step_verdict = None if event.bound is None else verdict

    def diagnosis(self, event: ev.Diagnosis) -> None:
        self.state.diagnosis = {
            "root_cause": dict(event.root_cause),
            "collateral": list(event.collateral),
            "attempt": event.attempt,
        }

    def run_stopping(self, event: ev.RunStopping) -> None:
        self._move_run(event.type)
        self.state.waits_for = self.state.stall = None
        self.state.stop_by = self.now + event.grace_s

    def run_finished(self, event: ev.RunFinished) -> None:
        state = self.state
        state.status, state.exit_code, state.ended_at = (
            Status(event.status),
            event.exit_code,
            self.now,
        )
        state.reason, state.hint = event.reason, event.hint
        state.waits_for = state.queue_reason = state.gathering = state.tensorboard = None
        state.stall = None
        for task in self.state.tasks:
            _move_task(task, "node_lost" if self._has_lost_node(task) else event.type)
            if task.pid is not None:
                task.ended_at = task.ended_at or self.now
        for node in self.state.nodes:
            self._move_node(node, event.type)

    def _has_lost_node(self, task: TaskSnapshot) -> bool:
        return self.state.nodes.get(task.node) == "lost"

    def _move_run(self, trigger: str) -> None:
        self.state.status = states.after(states.RUN, self.state.status, trigger)

    def _move_node(self, node: str, trigger: str) -> None:
        before = self.state.nodes.get(node, "connecting")
        self.state.nodes[node] = states.after(states.NODE, before, trigger)


def _move_task(task: TaskSnapshot, trigger: str) -> None:
    task.state = states.after(states.TASK, task.state, trigger)


def _merged(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a task after a report: those of the ends of epochs stay meanwhile."""
    stay = {name: value for name, value in before.items() if not now or is_of_epoch_end(name)}
    return stay | dict(now)


def _set_usage(task: TaskSnapshot, used: Mapping[str, Any]) -> None:
    task.rss_bytes, task.cores = used.get("rss_bytes"), used.get("cores")
    task.gpu, task.gpu_memory_bytes = used.get("gpu"), used.get("gpu_memory_bytes")


def _with_port(address: str, port: int, *, host: str | None = None) -> str:
    return f"{host or address.rpartition(':')[0]}:{port}"


def _facts(event: Event) -> dict[str, Any]:
    facts = event.facts()
    return {name: facts[name] for name in facts.keys() - {"type", "task", "attempt"}}


def _best(trials: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the id of the best completed trial, or None; of equal ones the first.

    The rule is KerasTuner's (Oracle.get_best_trials).
    """
    done = [trial for trial in trials if is_done_trial(trial)]
    if not done:
        return None
    sign = -1 if done[0].get("direction") == "max" else 1
    return str(min(done, key=lambda trial: sign * float(trial["score"]))["id"])
