"""One task in one attempt as the supervisor knows it, and the settings that tasks have read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tfcluster.plan.keras_settings import asks_for_keras_3
from tfcluster.plan.plan import Plan, TaskId, TaskPlan
from tfcluster.rundir.events import TaskExited
from tfcluster.supervision.decisions import TaskEnd
from tfcluster.supervision.failure import Failure
from tfcluster.supervision.restart_policy import restarts_alone

BOOT_GRACE_S = 2.0
"""For tasks started through our boot that cannot save: MultiWorkerMirroredStrategy swallows SIGTERM
(tensorflow/core preemption_notifier.cc), so waiting longer is in vain."""
COMMAND_GRACE_S = 10.0
"""For tasks of which nothing is known (docker stop's default)."""


@dataclass(slots=True)
class Member:
    """One task in one attempt of its own."""

    id: TaskId
    node: str
    serves: bool
    """It never ends by itself: a ps, or a worker that is inside `Server.join`."""
    is_hooked: bool
    """Started through `tfcluster_workers.boot`."""
    alone: bool
    """Whether it is restarted while the others go on."""
    searches: bool = False
    """It is a task of a hyperparameter search."""
    asks_for_keras_3: bool = False
    """The spec has ``keras.version: 3``."""
    attempt: int = 1
    is_ordered: bool = False
    """Its agent was told to start it."""
    started_at: float | None = None
    is_lost: bool = False
    is_due_again: bool = False
    """It has ended, and will be started again by itself."""
    is_called_off: bool = False
    """It was due again, but is not needed any more."""
    is_stopping: bool = False
    answer_by: float | None = None
    """When its agent must have told of the start or the end that was ordered."""
    waits_since: float | None = None
    """When it began to wait for its peers; None while it does not."""
    has_waited: bool = False
    """Its strategy is one that waits for all peers."""
    has_joined: bool = False
    has_trained: bool = False
    step: int | None = None
    heard_at: float | None = None
    """Its last sign of progress."""
    saved: bool = False
    saved_step: int | None = None
    saves_on_sigterm: bool = False
    frozen_by: int | None = None
    """The signal that stopped its process."""
    has_evaluated: bool = False
    evaluated_step: int | None = None
    """Of its last evaluation; None where the step of the checkpoint is not known."""
    trials_ended: int = 0
    """Of a search: by this tuner, or of those whose books it keeps."""
    has_searched: bool = False
    """Its search is over; what it does now needs no tuner."""
    verdict: str | None = None
    """What it says went wrong although it exits with 0: a search in which every trial failed."""
    raised: Mapping[str, Any] | None = None
    """The uncaught exception that it reported before anybody asked it to end."""
    exit: TaskExited | None = None
    failure: Failure | None = None
    told: dict[str, Member] | None = field(default=None, repr=False, compare=False)
    """Where it enters itself with every change, for `member_counts`."""

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if (told := getattr(self, "told", None)) is not None:
            told[str(self.id)] = self

    @property
    def is_started(self) -> bool:
        return self.started_at is not None

    @property
    def waits_for_peers(self) -> bool:
        return self.waits_since is not None

    @property
    def trains_in_step(self) -> bool:
        """Its strategy has joined its peers: since then every step was one of all together."""
        return self.has_waited and not self.waits_for_peers

    @property
    def is_over(self) -> bool:
        """It has ended, or its node is lost."""
        return self.exit is not None or self.is_lost

    @property
    def is_running(self) -> bool:
        return self.is_started and not self.is_over

    @property
    def is_to_start(self) -> bool:
        return not (self.is_ordered or self.is_over or self.is_called_off)

    @property
    def is_awaited(self) -> bool:
        """Its process may live already: the order is out, the answer has not come."""
        return self.is_ordered and not self.is_started and not self.is_over

    def is_overdue(self, now: float) -> bool:
        """Whether its agent should have told of its start or its end by `now`."""
        waits = self.answer_by is not None and (self.is_running or self.is_awaited)
        return waits and self.answer_by is not None and self.answer_by <= now

    def note_start(self, now: float) -> None:
        self.is_ordered, self.started_at = True, now
        self.answer_by = None

    def note_report(self, report: Mapping[str, Any], now: float) -> None:
        """What the task says of itself, as `report_checks` has let it through."""
        match report:
            case {"type": "waiting_for_peers"}:
                self.waits_since = now if self.waits_since is None else self.waits_since
                self.has_waited = True
            case {"type": "ready"}:
                self.waits_since, self.has_joined = None, True
            case {"type": "serving"}:
                self.serves = True
            case {"type": "progress", "step": int(step)}:
                self.waits_since, self.has_joined, self.has_trained = None, True, True
                self.step, self.heard_at = step, now
            case {"type": "saves_on_sigterm"}:
                self.saves_on_sigterm = True
            case {"type": "saved"}:
                self.saved = True
                told = report.get("step")
                self.saved_step = told if isinstance(told, int) else None
            case {"type": "saved_elsewhere"}:
                told = report.get("step")
                self.saved_step = told if isinstance(told, int) else None
            case {"type": "evaluated"}:
                self.has_evaluated, told = True, report.get("step")
                self.evaluated_step = told if isinstance(told, int) else None
            case {"type": "trial_ended"}:
                self.trials_ended += 1
            case {"type": "trial", "status": "COMPLETED" | "FAILED"}:
                self.trials_ended += 1
            case {"type": "error"} if not self.is_stopping:
                self.raised = report
            case {"type": "search_ended"}:
                self.has_searched = True
            case {"type": "verdict", "ok": False, "reason": str(reason)}:
                self.verdict = reason

    def stop_grace_s(self, most_s: float) -> float:
        """How long an asked-for stop waits between SIGTERM and SIGKILL, seconds."""
        if self.waits_for_peers:
            return 0.0
        if self.saves_on_sigterm:
            return most_s
        return min(most_s, BOOT_GRACE_S if self.is_hooked else COMMAND_GRACE_S)

    def end(self) -> TaskEnd:
        ended = self.exit
        return TaskEnd(
            id=self.id,
            running=not (self.is_over or self.is_called_off) or self.is_due_again,
            ok=ended is not None and ended.exit_code == 0 and self.failure is None,
            ended_by_us=self.is_called_off
            or (ended is not None and ended.ended_by == "tfcluster" and not self.failure),
            serves=self.serves,
            collateral=self.failure is not None and self.failure.is_collateral,
            alone=self.alone,
            searches=self.searches,
            works_on=self.has_searched or (self.has_trained and not self.has_waited),
        )

    def fails(self, **facts: Any) -> Failure:
        """Note that it has failed; `facts` are further fields of the `Failure`."""
        ended = self.exit
        end = {
            "exit_code": ended.exit_code if ended else None,
            "signal": ended.signal if ended else None,
        }
        self.failure = Failure(
            task=str(self.id),
            node=self.node,
            attempt=self.attempt,
            saved=self.saved,
            asks_for_keras_3=self.asks_for_keras_3,
            **(end | facts),
        )
        return self.failure


def member_of(plan: Plan, task: TaskPlan, attempt: int) -> Member:
    return Member(
        task.id,
        task.node,
        serves=task.id.job == "ps",
        is_hooked=plan.hooks and not task.has_own_command,
        alone=restarts_alone(plan, task.id),
        searches=plan.kind == "tuner",
        asks_for_keras_3=asks_for_keras_3(task.command.env),
        attempt=attempt,
    )


_STRATEGY: Final = "tfcluster_workers.strategy.make() for its strategy"
_FIELDS: Final = {
    "strategy": ("strategy.name", _STRATEGY),
    "communication": ("strategy.communication", _STRATEGY),
    "bytes_per_pack": ("strategy.bytes_per_pack", _STRATEGY),
    "collective_timeout_s": ("strategy.collective_timeout_s", _STRATEGY),
    "precision": ("keras.precision", "tfcluster_workers.keras_choice.apply_precision(keras)"),
    "steps_per_execution": (
        "keras.steps_per_execution",
        "compile(steps_per_execution=tfcluster_workers.keras_choice.steps_per_execution())",
    ),
}
"""Setting → its field of the spec, and what a script calls to follow it."""


class SettingsRead:
    """What the tasks said they have read of `settings`, the plan's."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._unread = dict(settings)

    def note(self, report: Mapping[str, Any]) -> None:
        """A task's own report; only ``setting_read`` matters here."""
        if report.get("type") == "setting_read":
            self._unread.pop(str(report.get("name")), None)

    def warning(self) -> str | None:
        """One line about all that no task has read, and how a script reads it."""
        if not self._unread:
            return None
        known = {name: _FIELDS.get(name, (name, "")) for name in self._unread}
        fields = ", ".join(f"{known[name][0]} = {value}" for name, value in self._unread.items())
        calls = " and ".join(dict.fromkeys(call for _, call in known.values() if call))
        fix = f". The script must call {calls}" if calls else ""
        return f"no task has read {fields}: it had no effect{fix}"
