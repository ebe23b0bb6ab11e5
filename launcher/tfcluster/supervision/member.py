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
"""The grace of hooked tasks that cannot save: MultiWorkerMirroredStrategy swallows SIGTERM
(tensorflow/core preemption_notifier.cc), so waiting longer would not help."""
COMMAND_GRACE_S = 10.0
"""The grace of tasks without hooks (the default of `docker stop`)."""


@dataclass(slots=True)
class Member:
    """The state of one task in one attempt."""

    id: TaskId
    node: str
    serves: bool
    """True if it never ends by itself: a ps, or a worker inside `Server.join`."""
    is_hooked: bool
    """True if it is started through `tfcluster_workers.boot`."""
    restarts_alone: bool
    """True if it can be restarted while the others go on."""
    searches: bool = False
    """True for a task of a hyperparameter search."""
    asks_for_keras_3: bool = False
    """The spec has ``keras.version: 3``."""
    attempt: int = 1
    is_ordered: bool = False
    """True once its agent was ordered to start it."""
    started_at: float | None = None
    is_lost: bool = False
    is_restart_due: bool = False
    """True if it has ended and will be restarted alone."""
    is_cancelled: bool = False
    """True if its start or restart was cancelled because it is no longer needed."""
    is_stopping: bool = False
    answer_by: float | None = None
    """The time by which its agent must report the ordered start or stop."""
    waits_since: float | None = None
    """The time since which it waits for its peers; None while it does not."""
    has_waited: bool = False
    """True if its strategy is one that waits for all peers."""
    has_joined: bool = False
    has_trained: bool = False
    step: int | None = None
    heard_at: float | None = None
    """The time of its last progress report."""
    saved: bool = False
    saved_step: int | None = None
    saves_on_sigterm: bool = False
    frozen_by: int | None = None
    """The signal that stopped its process."""
    has_evaluated: bool = False
    evaluated_step: int | None = None
    """The step of the last evaluated checkpoint; None where it is not known."""
    trials_ended: int = 0
    """The number of ended trials of a search: of this tuner, or for the chief, of all tuners."""
    has_searched: bool = False
    """True once its search is over: its further work needs no tuner."""
    verdict: str | None = None
    """The reason it reports for a failure despite exit code 0: every trial of its search failed."""
    raised: Mapping[str, Any] | None = None
    """The uncaught exception that it reported before it was asked to stop."""
    exit: TaskExited | None = None
    failure: Failure | None = None
    changed: dict[str, Member] | None = field(default=None, repr=False, compare=False)
    """The changed members of `MemberCounts`, to which every change adds this one."""

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if (changed := getattr(self, "changed", None)) is not None:
            changed[str(self.id)] = self

    @property
    def is_started(self) -> bool:
        return self.started_at is not None

    @property
    def waits_for_peers(self) -> bool:
        return self.waits_since is not None

    @property
    def trains_in_step(self) -> bool:
        """True once its strategy has joined its peers: all train every step together."""
        return self.has_waited and not self.waits_for_peers

    @property
    def is_over(self) -> bool:
        """True if it has ended, or its node is lost."""
        return self.exit is not None or self.is_lost

    @property
    def is_running(self) -> bool:
        return self.is_started and not self.is_over

    @property
    def is_to_start(self) -> bool:
        return not (self.is_ordered or self.is_over or self.is_cancelled)

    @property
    def is_awaited(self) -> bool:
        """True after the order to start and before the answer: its process may already run."""
        return self.is_ordered and not self.is_started and not self.is_over

    def is_overdue(self, now: float) -> bool:
        """Return whether its agent should have reported its start or its end by `now`."""
        is_late = self.answer_by is not None and self.answer_by <= now
        return is_late and (self.is_running or self.is_awaited)

    def note_start(self, now: float) -> None:
        self.is_ordered, self.started_at = True, now
        self.answer_by = None

    def note_report(self, report: Mapping[str, Any], now: float) -> None:
        """Note a report of the task, which `report_checks` has validated."""
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
                self.saved, self.saved_step = True, _step_of(report)
            case {"type": "saved_elsewhere"}:
                self.saved_step = _step_of(report)
            case {"type": "evaluated"}:
                self.has_evaluated, self.evaluated_step = True, _step_of(report)
            case {"type": "trial_ended"} | {"type": "trial", "status": "COMPLETED" | "FAILED"}:
                self.trials_ended += 1
            case {"type": "error"} if not self.is_stopping:
                self.raised = report
            case {"type": "search_ended"}:
                self.has_searched = True
            case {"type": "verdict", "ok": False, "reason": str(reason)}:
                self.verdict = reason

    def stop_grace_s(self, most_s: float) -> float:
        """Return how many seconds a requested stop waits between SIGTERM and SIGKILL."""
        if self.waits_for_peers:
            return 0.0
        if self.saves_on_sigterm:
            return most_s
        return min(most_s, BOOT_GRACE_S if self.is_hooked else COMMAND_GRACE_S)

    def end(self) -> TaskEnd:
        ended = self.exit
        return TaskEnd(
            id=self.id,
            running=not (self.is_over or self.is_cancelled) or self.is_restart_due,
            ok=ended is not None and ended.exit_code == 0 and self.failure is None,
            ended_by_us=self.is_cancelled
            or (ended is not None and ended.ended_by == "tfcluster" and not self.failure),
            serves=self.serves,
            collateral=self.failure is not None and self.failure.is_collateral,
            restarts_alone=self.restarts_alone,
            searches=self.searches,
            works_on=self.has_searched or (self.has_trained and not self.has_waited),
        )

    def fails(self, **facts: Any) -> Failure:
        """Set and return its `Failure`; `facts` are further fields of that."""
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


def _step_of(report: Mapping[str, Any]) -> int | None:
    step = report.get("step")
    return step if isinstance(step, int) else None


def member_of(plan: Plan, task: TaskPlan, attempt: int) -> Member:
    return Member(
        task.id,
        task.node,
        serves=task.id.job == "ps",
        is_hooked=plan.is_hooked(task),
        restarts_alone=restarts_alone(plan, task.id),
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
"""Setting → its field of the spec, and the call by which a script applies it."""


class SettingsRead:
    """The plan's `settings` that no task has read yet."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._unread = dict(settings)

    def note(self, report: Mapping[str, Any]) -> None:
        """Note a task's report; only ``setting_read`` matters here."""
        if report.get("type") == "setting_read":
            self._unread.pop(str(report.get("name")), None)

    def warning(self) -> str | None:
        """Return a warning about the settings that no task has read, with the fix, or None."""
        if not self._unread:
            return None
        known = {name: _FIELDS.get(name, (name, "")) for name in self._unread}
        fields = ", ".join(f"{known[name][0]} = {value}" for name, value in self._unread.items())
        calls = " and ".join(dict.fromkeys(call for _, call in known.values() if call))
        fix = f". The script must call {calls}" if calls else ""
        return f"no task has read {fields}: it had no effect{fix}"
