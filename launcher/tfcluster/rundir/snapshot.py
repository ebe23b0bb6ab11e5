"""The state of a run and its tasks as views read it from ``state.json``, with its validation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Annotated, Any

from tfcluster.rundir.goodput import Goodput
from tfcluster.rundir.states import Status
from tfcluster.spec import DATA_JOBS
from tfcluster.typed_json import from_json, reader

_STRINGS = (
    *("task", "node", "path", "kind", "reason", "fault", "id", "tuner", "objective", "status"),
    *("direction", "message", "run", "hint", "docs", "not_restarted", "exception", "file"),
    *("traceback", "what", "evaluated"),
)
_INTEGERS = (
    *("step", "attempt", "of", "from_step", "bytes", "resumed_step", "best_step", "line"),
    *("exit_code", "signal"),
)
_NUMBERS = (
    *("time", "delay_s", "injected_at", "detected_after_s", "resumed_after_s", "score"),
    *("started_at", "ended_at", "ran_s", "since"),
)
_RECORD_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(_STRINGS, str | None),
    **dict.fromkeys(_INTEGERS, int | None),
    **dict.fromkeys(_NUMBERS, float | None),
    **dict.fromkeys(("members", "also", "collateral", "causes"), list[str] | None),
    "tasks": dict[str, str] | None,
    "values": dict[str, Any] | None,
}
"""Name → type; a name means the same in all records: restarts, faults, checkpoints, trials, the
diagnosis."""


_CHIEFS = ("chief:0", "worker:0")
SERVERS = ("ps:", "evaluator:", *(f"{job}:" for job in DATA_JOBS))


def choose_leader(steps: Mapping[str, int]) -> str | None:
    """Return the task whose numbers stand for the run, of those that have reported a step.

    It is the chief (``chief:0``, else ``worker:0``), else the furthest of those that train.
    """
    training = {name: step for name, step in steps.items() if not name.startswith(SERVERS)}
    chief = next((name for name in _CHIEFS if name in steps), None)
    return chief or max(training or steps, key=steps.__getitem__, default=None)


def _record(*required: str) -> Callable[[Any], dict[str, Any]]:
    """Return the reader of a record that must have the fields `required`."""

    def read(value: Any) -> dict[str, Any]:
        record = from_json(dict[str, Any], value)
        for name in _RECORD_TYPES.keys() & record.keys():
            reader(_RECORD_TYPES[name])(record[name])
        if (cause := record.get("root_cause")) is not None:
            read(cause)
        if any(record.get(name) is None for name in required):
            raise ValueError(f"one of {required} is missing")
        return record

    return read


Record = Annotated[dict[str, Any], _record()]
_JobRecord = Annotated[dict[str, Any], _record("backend", "id", "restarts")]
_RestartRecord = Annotated[dict[str, Any], _record("attempt", "of")]
_FaultRecord = Annotated[dict[str, Any], _record("fault", "injected_at")]
_CheckpointRecord = Annotated[dict[str, Any], _record("path")]
_TrialRecord = Annotated[dict[str, Any], _record("id")]


def _read_agent(value: Any) -> dict[str, Any]:
    """Read process ids and an identity (for `agent.fencing`)."""
    agent = from_json(dict[str, Any], value)
    from_json(dict[str, Any], agent.get("identity", {}))
    from_json(dict[str, int], {name: pid for name, pid in agent.items() if name != "identity"})
    return agent


def _read_metric(value: Any) -> float:
    """Read a float, or a string: `to_json_numbers` writes NaN as a string."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        value = from_json(str, value)
    elif not abs(value) <= sys.float_info.max:
        raise ValueError("beyond float")
    return float(value)


def to_json_numbers(metrics: Mapping[str, float]) -> dict[str, float | str]:
    """Return `metrics` with NaN and infinities, which JSON lacks, as strings of protobuf's JSON.

    Python's float() and JavaScript's Number() can read ``"NaN"`` and ``"-Infinity"`` back.
    """
    names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return {n: value if isfinite(value) else names[str(value)] for n, value in metrics.items()}


@dataclass(slots=True, kw_only=True)
class Training:
    """The numbers of a training; those that nobody reported are None or empty."""

    step: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    total_steps: int | None = None
    """The step at which the training will be over, where it is known."""
    metrics: dict[str, Annotated[float, _read_metric]] = field(default_factory=dict)
    steps_per_second: float | None = None
    """The present speed; tasks that take their steps together have one speed (`figures`)."""
    mean_steps_per_second: float | None = None
    """The speed of the present attempt since its first step."""
    examples_per_second: float | None = None
    mean_examples_per_second: float | None = None
    first_step_s: float | None = None
    """The seconds from the start of the attempt to its first `progress`."""
    rss_bytes: int | None = None
    """Memory, and `cores` in use, as last reported."""
    cores: float | None = None


@dataclass(slots=True)
class TaskSnapshot(Training):
    """The present state of one task; `states.TASK` is the table of its states."""

    task: str
    node: str
    address: str
    state: str = "waiting"
    attempt: int = 0
    phase: str | None = None
    """The phase before its first step: ``importing TensorFlow``, ``waiting for peers``."""
    devices: list[str] = field(default_factory=list)
    """The devices that TensorFlow has registered in the present attempt: ``GPU NVIDIA H200``."""
    pid: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    ended_by: str | None = None
    steps_per_epoch: int | None = None
    has_joined: bool = False
    """True once it has waited for its peers, as a task of a strategy with several workers does."""
    gpu: float | None = None
    """The use of its GPUs, 0 to 1."""
    gpu_memory_bytes: int | None = None
    peak_rss_bytes: int | None = None
    log: str | None = None
    """The log of this attempt, relative to the run folder."""
    log_lost_bytes: int = 0
    frozen_by: int | None = None
    """The signal that has stopped its process, until that runs again or ends."""
    step_parts: dict[str, float] = field(default_factory=dict)
    """Part of a step → its seconds in one of the latest steps (event `step_times`)."""
    error: Record | None = None
    """The uncaught exception that the task reported: exception, message, file, line, traceback."""

    def begin(self) -> None:
        """Forget the task's attempt before: another one begins."""
        fresh = TaskSnapshot(task=self.task, node=self.node, address=self.address)
        for name in _TASK_FIELDS:
            if name not in ("state", "peak_rss_bytes", "log_lost_bytes"):
                setattr(self, name, getattr(fresh, name))


@dataclass(slots=True)
class RunSnapshot:
    """The present state of one run; times are seconds since 1970."""

    run: str
    name: str
    status: Status
    tasks: list[TaskSnapshot]
    host: str
    boot_id: str
    pid: int
    """The coordinator's process id, with `pid_start` its start time in clock ticks since boot."""
    pid_start: int
    started_at: float
    is_synchronous: bool = False
    """True if the tasks of its strategy take every step together."""
    by_hand: dict[str, str] = field(default_factory=dict)
    """Task that the user starts by hand (``up --except``) → its address."""
    agents: dict[str, Annotated[dict[str, Any], _read_agent]] = field(default_factory=dict)
    """Node → ``{"pid": 12, "guard_pid": 13, "identity": …}``; see `agent.fencing.identity`."""
    ended_at: float | None = None
    leases: dict[str, float] = field(default_factory=dict)
    """Node → until when its tasks may still run; only for a lost run."""
    stop_by: float | None = None
    """The time at which tasks that still run are killed, while the run is stopping."""
    exit_code: int | None = None
    attempt: int = 0
    spec: str | None = None
    spec_folder: str | None = None
    """The folder that relative paths in the run's ``spec.json`` start from."""
    version: str | None = None
    """The version of tfcluster that runs it; 0.1 did not record it here, only in `run_started`."""
    workdir: str | None = None
    background: bool = False
    """True if it was started with ``-d``."""
    job: _JobRecord | None = None
    """The job of a scheduler that the coordinator runs in: backend and id; `restarts` counts how
    often the scheduler started it again."""
    allocation: _JobRecord | None = None
    """The user's own job inside which the run was started: backend, id, and `restarts`, those
    before the run's last start."""
    continued: Record | None = None
    """The last time that the job was started again: `attempt`, the first one since; `ran_s`, the
    seconds for which the run ran before, without its time in queues."""
    newest_at_start: str | None = None
    """The result of `RunGathering.mark_newest` when the present start of the run's job began."""
    vain_starts: int = 0
    """The starts of the job in a row, before the present one, that were ended without saving
    anything newer."""
    began_at: float | None = None
    """The time of the coordinator's last start, by its own clock."""
    clock_ahead_s: float = 0.0
    """The seconds by which the submitter's clock, to which all other times here belong, is ahead of
    that of the machine with the coordinator."""
    runtime_dir: str | None = None
    """The folder of the coordinator's socket; another shell may have another default."""
    resumed_from: Record | None = None
    """The run and step of ``up --resume``."""
    diagnosis: Record | None = None
    """The fields root_cause (task, reason, hint, exit_code or signal) and collateral."""
    reason: str | None = None
    """The reason of the outcome where a task's own failure does not explain it, or not alone."""
    hint: str | None = None
    """The user's next step after `reason`."""
    gathering: Record | None = None
    """The files that the run waits for: what, and where it is known node, bytes, of."""
    waits_for: str | None = None
    """The reason in words for which a restart waits: a pause or a node's lease."""
    queue_reason: str | None = None
    """The reason for which a queued run waits, in its scheduler's words."""
    stall: Record | None = None
    """The explanation of a stall: `since` (the last sign of work), `what` (one line: the tasks that
    are waited for, and where), `causes`, and `tasks`: task → where it is."""
    restarts: list[_RestartRecord] = field(default_factory=list)
    """The `restarting` events so far, oldest first, each with its `time`."""
    goodput: Goodput | None = None
    """The parts of the time so far; None for a run that is no training."""
    chaos: list[_FaultRecord] = field(default_factory=list)
    """Injected faults: fault, task, attempt, step, injected_at, and once they are known
    detected_after_s, resumed_after_s."""
    nodes: dict[str, str] = field(default_factory=dict)
    """Node → connecting, connected, lost or gone."""
    checkpoints: list[_CheckpointRecord] = field(default_factory=list)
    """The gathered checkpoints, oldest first: path (below the run folder), step, kind, bytes."""
    missed: str | None = None
    """The reason why the chief's last checkpoints were not gathered; None if they were."""
    missed_in: str | None = None
    """The folder on the chief's node that they are in, where it is another machine."""
    trials: list[_TrialRecord] = field(default_factory=list)
    """The trials of a search in the order of their start: id, status, tuner, values, objective,
    direction, and where they are known score, best_step, message, started_at, ended_at."""
    best_trial: str | None = None
    """The id of the best completed trial."""
    tracker_group: str | None = None
    """The group of its tasks in experiment trackers: the first run of those that it resumes."""
    tensorboard: str | None = None
    """The address of the run's own TensorBoard, while the run lives."""
    warnings: list[str] = field(default_factory=list)
    alerts: dict[str, str] = field(default_factory=dict)
    """Kind → sentence: facts that make the result doubtful (event `alert`)."""
    step_verdict: Record | None = None
    """The part that makes the steps as long as they are: bound, causes, message, fix (event
    `step_verdict`), and `since`; None where it is not clear."""
    _indices: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Task → its index in `tasks`; a cache."""

    def task(self, name: str) -> TaskSnapshot:
        """Return the state of the task `name`; raise KeyError if the run does not have it."""
        place = self._indices.get(name)
        if place is None or place >= len(self.tasks) or self.tasks[place].task != name:
            self._indices = {task.task: place for place, task in enumerate(self.tasks)}
        return self.tasks[self._indices[name]]

    @property
    def leader(self) -> TaskSnapshot | None:
        """The task whose numbers stand for the run; None before the first step."""
        steps = {task.task: task.step for task in self.tasks if task.step is not None}
        name = choose_leader(steps)
        return self.task(name) if name is not None else None

    @property
    def may_have_ungathered(self) -> bool:
        """True if the run is over and its tasks may have saved what nobody has gathered."""
        return self.status.is_final and (self.status is Status.LOST or bool(self.missed))

    def to_json(self) -> dict[str, Any]:
        """Return the state for JSON; it shares lists and mappings, so write it at once."""
        tasks = [
            _to_dict(task, _TASK_FIELDS) | {"metrics": to_json_numbers(task.metrics)}
            for task in self.tasks
        ]
        values = _to_dict(self, _RUN_FIELDS) | {"status": str(self.status), "tasks": tasks}
        return values | {"goodput": None if self.goodput is None else self.goodput.to_json()}


_TASK_FIELDS = tuple(f.name for f in fields(TaskSnapshot))
_RUN_FIELDS = tuple(f.name for f in fields(RunSnapshot) if f.init)


def is_done_trial(trial: Mapping[str, Any]) -> bool:
    """Return whether `trial`, a record of `RunSnapshot.trials`, was completed and has a score."""
    return trial.get("status") == "COMPLETED" and isinstance(trial.get("score"), int | float)


def _to_dict(snapshot: TaskSnapshot | RunSnapshot, names: tuple[str, ...]) -> dict[str, Any]:
    """Return a shallow `dataclasses.asdict`, which is ten times as fast."""
    return {name: getattr(snapshot, name) for name in names}


def end_json(state: RunSnapshot) -> dict[str, Any]:
    """Return how a run ended, for programs: ``wait --json`` and `supervision.on_end`."""
    facts = {"run": state.run, "status": str(state.status), "exit_code": state.exit_code}
    reasons = {"reason": state.reason, "hint": state.hint, "diagnosis": state.diagnosis}
    return facts | {key: value for key, value in reasons.items() if value}


def describe_failure(state: RunSnapshot) -> tuple[str, str]:
    """Return why a run failed and what to do; empty if it has not failed."""
    if not state.status.is_final or state.status is Status.SUCCEEDED:
        return "", ""
    if state.status is Status.LOST:
        message = f"{state.run} is lost: its coordinator died before the run ended"
        fix = (
            f"`tfcluster logs {state.run}` shows the tasks' output,"
            f" `tfcluster down {state.run}` cleans up"
        )
        return message, fix
    cause = (state.diagnosis or {}).get("root_cause", {})
    why = state.reason or (f"{cause['task']}: {cause['reason']}" if "reason" in cause else "")
    fix = state.hint or cause.get("hint") or f"`tfcluster logs {state.run}` shows the output"
    return f"{state.run}: {state.status.words}" + (f": {why}" if why else ""), fix
