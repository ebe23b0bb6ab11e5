"""Decides whether a failure leads to a restart, after which delay, and if not, why (pure).

By default, failures that a restart can fix are restarted: a lost node, a signal, a lack of memory.
Preemption, suspension and a taken port do not count against the budget, but three in a row without
progress end the run: TensorFlow's PreemptionCheckpointHandler exits with 42 after saving (143 on
GCE; tensorflow/python/distribute/failure_handling/failure_handling.py). An exception would occur
again unless something has changed, so a restart needs ``restart_on_error`` or a checkpoint newer
than the attempt, and the same exception never gets a third try from the same checkpoint. Failures
that no restart can fix are permanent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tfcluster.checkpoints.recognition import Newest
from tfcluster.plans.plan import Plan, Supervision, TaskId
from tfcluster.supervision.failure import Failure, Kind

LONGEST_BACKOFF_S: Final = 60.0
FREE_IN_A_ROW: Final = 3
"""The number of uncounted restarts allowed in a row without progress."""
_JITTER: Final = 0.25
"""The largest random addition, as a fraction of a delay: runs that lost the same machine should
not all return at once."""
_FREE: Final = {
    Kind.PREEMPTED: "preempted",
    Kind.PORT_TAKEN: "a port was taken",
    Kind.SUSPENDED: "suspended",
}
_SCRIPT_ERRORS: Final = frozenset({Kind.EXCEPTION, Kind.EXIT_CODE})
_NOT_RESTARTED: Final = frozenset({Kind.PERMANENT, Kind.START_FAILED})
_RESTARTS_ARE_OFF: Final = "restarts are off: supervision.max_restarts is 0"
_NOTHING_SAVED: Final = (
    "it would fail the same way: the job saved nothing since its start, and"
    " supervision.restart_on_error is off"
)


@dataclass(frozen=True, slots=True)
class RestartHistory:
    """The restarts so far of a unit: the gang, or a task that restarts alone."""

    spent: int = 0
    """Restarts that counted."""
    without_progress: int = 0
    """Restarts in a row since the last sign of progress: the delay doubles with each."""
    free_without_progress: int = 0
    signature: tuple[str, str | None, int | None] | None = None
    """The last failure's exception, file and line, if no newer checkpoint was saved since."""
    saves: int = 0
    """The number of saves of the run before the last restart."""
    furthest: int = -1
    """The highest step of any of its attempts."""


@dataclass(frozen=True, slots=True)
class Restart:
    """The decision to restart after `delay_s` seconds; `history` includes this restart."""

    delay_s: float
    history: RestartHistory
    fresh_ports: bool = False
    is_counted: bool = True
    """False if it does not count against ``max_restarts``."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The decision not to restart; `reason` is shown to the user."""

    reason: str
    exhausted: bool = False
    """Another restart might have helped, but the budget is used up."""


def decide(
    failure: Failure,
    history: RestartHistory,
    policy: Supervision,
    *,
    advanced: bool,
    progressed: bool,
    jitter: float = 0.0,
) -> Restart | GiveUp:
    """Return whether to restart after `failure`, the root cause.

    `advanced`: a checkpoint newer than the attempt's start is in the run folder. `progressed`: the
    attempt has reported new steps. `jitter`: a random number in [0, 1).
    """
    if advanced:
        history = replace(history, without_progress=0, signature=None)
    if advanced or progressed:
        history = replace(history, free_without_progress=0)
    if (refusal := _refusal(failure, history, policy, advanced=advanced)) is not None:
        return refusal
    free = failure.kind in _FREE
    delay_s = min(LONGEST_BACKOFF_S, policy.backoff_s * 2**history.without_progress) * (
        1 + _JITTER * jitter
    )
    after = replace(
        history,
        spent=history.spent + (not free),
        without_progress=history.without_progress + 1,
        free_without_progress=history.free_without_progress + free,
        signature=failure.signature,
    )
    port_taken = failure.kind is Kind.PORT_TAKEN
    return Restart(
        0.0 if port_taken else delay_s, after, fresh_ports=port_taken, is_counted=not free
    )


def _refusal(
    failure: Failure, history: RestartHistory, policy: Supervision, *, advanced: bool
) -> GiveUp | None:
    kind = failure.kind
    if kind in _NOT_RESTARTED:
        return GiveUp("it would fail the same way")
    if kind in _FREE:
        if history.free_without_progress >= FREE_IN_A_ROW:
            return GiveUp(f"{_FREE[kind]} {FREE_IN_A_ROW} times in a row without progress")
        return None
    if kind in _SCRIPT_ERRORS:
        if failure.signature is not None and failure.signature == history.signature:
            return GiveUp("the same exception occurred twice without a newer checkpoint between")
        if not (advanced or policy.restart_on_error):
            return GiveUp(_NOTHING_SAVED if policy.max_restarts else _RESTARTS_ARE_OFF)
    if history.spent >= policy.max_restarts:
        used_up = f"supervision.max_restarts = {policy.max_restarts} is used up"
        return GiveUp(used_up if policy.max_restarts else _RESTARTS_ARE_OFF, exhausted=True)
    return None


def last_attempt(attempt: int, history: RestartHistory, policy: Supervision) -> int:
    """Return the number of the last attempt if all restarts that are left after `attempt` count:
    the 4 of "attempt 2 of 4"."""
    return attempt + max(0, policy.max_restarts - history.spent)


def restarts_alone(plan: Plan, task: TaskId) -> bool:
    """Return whether `task` can be restarted while the others go on.

    A worker of MultiWorkerMirroredStrategy cannot: the others reject it ("unexpectedly tried to
    connect with a different incarnation", coordination_service.cc). The workers of a
    ClusterCoordinator, tuners and all that is not in the gang can; a job that loses its coordinator
    or a ps cannot.
    """
    if not (plan.forms_gang and task.is_in_gang):
        return True
    if task.job != "worker" or task == plan.chief:
        return False
    return plan.kind == "tuner" or plan.task(task).serves


def chief_of(members: Iterable[TaskId]) -> TaskId:
    """Return the task whose checkpoints count: the chief, else the lowest-numbered worker."""
    trainers = (task for task in members if task.trains)
    return min(trainers, key=lambda task: (task.job != "chief", task.index))


def chief_among(plan: Plan, members: Iterable[TaskId]) -> TaskId:
    """Return the chief as `chief_of` does, or the plan's if that is not among `members`."""
    return plan.chief if plan.joins or plan.elsewhere else chief_of(members)


def without(
    plan: Plan, members: tuple[TaskId, ...], cause: Failure, why: GiveUp
) -> tuple[TaskId, ...] | None:
    """Return `members` without the tasks that are lost for good, or None if the rest is too small.

    Lost are all tasks of a lost node, a task whose program cannot be executed, and one whose
    failures have used up the budget. After an error of the script the result is None, because it
    would occur on every other worker, too.
    """
    if not why.exhausted and cause.kind is not Kind.START_FAILED:
        return None
    lost = {TaskId.parse(cause.task)}
    if cause.kind is Kind.NODE_LOST:
        lost = {task.id for task in plan.tasks if task.node == cause.node}
    return remaining(plan, members, lost)


def remaining(
    plan: Plan, members: tuple[TaskId, ...], lost: Collection[TaskId]
) -> tuple[TaskId, ...] | None:
    """Return `members` without the tasks that are `lost`, or None if the rest is too small."""
    least = plan.supervision.min_workers
    if least is None or not plan.is_synchronous:
        return None
    left = tuple(task for task in members if task not in lost)
    trainers = [task for task in left if task.trains]
    return left if len(trainers) >= max(1, least) else None


@dataclass(slots=True)
class Restarts:
    """The restarts of a run; each unit, the gang (None) or a task, has its own budget."""

    plan: Plan
    newest: Newest = field(default_factory=Newest)
    """The newest checkpoint in the run folder, from which the next attempt would start."""
    _begun_from: Newest = field(default_factory=Newest)
    _advanced: bool = False
    """A checkpoint newer than the attempt's start was saved."""
    _saves: int = 0
    _histories: dict[TaskId | None, RestartHistory] = field(default_factory=dict)

    def begin(self) -> None:
        """Note that an attempt of the gang begins from the newest gathered checkpoint."""
        self._begun_from, self._advanced = self.newest, False

    def note_saved(self, step: int | None) -> None:
        """Note that the chief has saved; saving the step it began with is no progress."""
        if step is None or step != self._begun_from.step:
            self._advanced = True
            self._saves += 1

    def note_gathered(self, step: int | None, name: str | None) -> None:
        """Note that a checkpoint of this attempt is in the run folder."""
        self.note_saved(step)
        if step is not None or self.newest.step is None:
            self.newest = Newest(step, name)

    def note_all_gathered(self, newest: Newest) -> None:
        """Note that all checkpoints of the attempt are in the run folder, and the newest one."""
        self.newest, before = newest, self._begun_from
        if newest.step is None:
            self._advanced |= newest.name not in (None, before.name)
        else:
            self._advanced |= newest.step != before.step

    def carry_over(self, records: Iterable[Mapping[str, Any]], *, last_attempt: int = 0) -> None:
        """Count the restarts of a run that its scheduler has started again.

        `records`: `RunSnapshot.restarts`. The scheduler's own restarts are not among them. Those
        whose attempt is later than the last one that began have brought no progress.
        """
        for record in records:
            unit = TaskId.parse(record["task"]) if record.get("task") else None
            before, counts = self.history(unit), record.get("counts") is not False
            is_vain = not (counts or record.get("planned")) and record["attempt"] > last_attempt
            self._histories[unit] = replace(
                before,
                spent=before.spent + counts,
                free_without_progress=before.free_without_progress + is_vain,
            )

    def history(self, unit: TaskId | None) -> RestartHistory:
        return self._histories.get(unit, RestartHistory())

    def decide(
        self,
        unit: TaskId | None,
        failure: Failure,
        *,
        step: int | None,
        jitter: Callable[[], float],
    ) -> Restart | GiveUp:
        """Decide as the function `decide` does, and count a restart.

        `step` is how far the attempt came (`Member.progress`); it is progress where no earlier
        attempt came as far, and in a search always. A checkpoint of the chief counts for a task
        that restarts alone, too, except where the restart is free: otherwise the task could be
        restarted for ever without progress.
        """
        if self.plan.joins:
            return GiveUp("`join` restarts nothing: start it again on every machine")
        if self.plan.by_hand:
            return GiveUp("tfcluster cannot restart the tasks that you started by hand")
        before = self.history(unit)
        has_saved = self._saves > before.saves and failure.kind not in _FREE
        reached = -1 if step is None else step
        is_further = reached > before.furthest
        history = replace(before, furthest=max(before.furthest, reached))
        verdict = decide(
            failure,
            history,
            self.plan.supervision,
            advanced=self._advanced if unit is None else has_saved,
            progressed=is_further or (step is not None and self.plan.kind == "tuner"),
            jitter=jitter(),
        )
        if isinstance(verdict, Restart):
            history = replace(verdict.history, saves=self._saves)
        self._histories[unit] = history
        return verdict
