"""One task in one attempt as the supervisor knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tfcluster.agent import catalogue as msg
from tfcluster.plans.keras_settings import KerasPatch, asks_for_keras_3, keras_patch
from tfcluster.plans.plan import Plan, TaskId, TaskPlan
from tfcluster.rundir.events import TaskExited
from tfcluster.supervision.decisions import Standing
from tfcluster.supervision.failure import Failure
from tfcluster.supervision.restart_policy import restarts_alone

BOOT_GRACE_S = 2.0
"""The grace of hooked tasks that cannot save: MultiWorkerMirroredStrategy swallows SIGTERM
(tensorflow/core preemption_notifier.cc), so waiting longer would not help."""
COMMAND_GRACE_S = 10.0
"""The grace of tasks without hooks (the default of `docker stop`)."""
MOST_SHARDS = 100
"""The number of shards that one task may report."""


@dataclass(frozen=True, slots=True)
class Member:
    """The state of one task in one attempt; `Gang.put` replaces it by the next one."""

    id: TaskId
    node: str
    serves: bool
    """True if it never ends by itself: a ps, or a worker inside `Server.join`."""
    is_hooked: bool
    """True if it is started through `tfcluster_workers.boot`."""
    restarts_alone: bool
    """True if it can be restarted while the others go on: its failure does not stop them."""
    searches: bool = False
    """True for a task of a hyperparameter search."""
    asks_for_keras_3: bool = False
    """The spec has ``keras.version: 3``."""
    is_cut_off: bool = False
    """True if its network is private or simulated: it reaches only the run's other tasks."""
    keras_patch: KerasPatch = "on"
    backend: str = ""
    """The backend of its node."""
    attempt: int = 1
    is_ordered: bool = False
    """True once its agent was ordered to start it."""
    started_at: float | None = None
    is_lost: bool = False
    is_restart_due: bool = False
    """True if it has ended and will be restarted alone."""
    is_cancelled: bool = False
    """True if it is no longer needed: its start or restart was cancelled, or its node was lost
    after the chief's success."""
    is_stopping: bool = False
    answer_by: float | None = None
    """The time by which its agent must report the ordered start or stop."""
    waits_since: float | None = None
    """The time since which it waits for its peers; None while it does not."""
    has_waited: bool = False
    """True if its strategy is one that waits for all peers."""
    has_joined: bool = False
    has_trained: bool = False
    way: str | None = None
    """The way it trains (`alerts.WAYS`); None before it has computed a gradient."""
    meets_peers: bool = False
    reduces: bool = False
    """True once it has summed a value over all workers."""
    restored: tuple[str, ...] | None = None
    """The names of what it restored before its first step; None before that."""
    first_batches: tuple[str, ...] = ()
    shards: tuple[tuple[int, int], ...] = ()
    """The number and the index of each shard that TensorFlow shards again."""
    step: int | None = None
    epochs: int | None = None
    steps_per_epoch: int | None = None
    total_steps: int | None = None
    """The step at which its training will be over, where it reports that."""
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
    doubts: Mapping[str, msg.Doubt] = field(default_factory=dict)
    """The subjects of its doubts → the doubts, which count if it ends with 0."""
    raised: Mapping[str, Any] | None = None
    """The uncaught exception that it reported before it was asked to stop."""
    exit: TaskExited | None = None
    failure: Failure | None = None

    @property
    def name(self) -> str:
        return str(self.id)

    @property
    def is_core(self) -> bool:
        """False for an evaluator, which only follows the checkpoints."""
        return self.id.job != "evaluator"

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
    def is_done(self) -> bool:
        """True if it has taken the last step of its training."""
        return None not in (self.step, self.total_steps) and self.step == self.total_steps

    @property
    def began_at_step(self) -> int | None:
        """The step at which its present training began, where it reports its epochs."""
        if self.total_steps is None or self.epochs is None or self.steps_per_epoch is None:
            return None
        return self.total_steps - self.epochs * self.steps_per_epoch

    @property
    def is_to_start(self) -> bool:
        return not (self.is_ordered or self.is_over or self.is_cancelled)

    def is_overdue(self, now: float) -> bool:
        """Return whether its agent should have reported its start or its end by `now`."""
        is_late = self.answer_by is not None and self.answer_by <= now
        return is_late and self.is_ordered and not self.is_over

    @property
    def is_ok(self) -> bool:
        return self.exit is not None and self.exit.exit_code == 0 and self.failure is None

    @property
    def progress(self) -> int | None:
        """The progress of the attempt: a step, or in a search a number of trials.

        An interrupted trial begins from its start, so its steps are lost.
        """
        if self.searches:
            return self.trials_ended or None
        return self.step if self.is_core else self.evaluated_step

    @property
    def standing(self) -> Standing:
        """All facts that decide how the run goes on."""
        over, failure, ended = self.is_over, self.failure, self.exit
        alive = self.started_at is not None and not over
        awaited = self.is_ordered and self.started_at is None and not over
        stopped = ended is not None and ended.ended_by == "tfcluster" and failure is None
        return Standing(
            job=self.id.job,
            running=not (over or self.is_cancelled) or self.is_restart_due,
            ok=self.is_ok,
            ended_by_us=self.is_cancelled or stopped,
            collateral=failure is not None and failure.is_collateral,
            serves=self.serves,
            restarts_alone=self.restarts_alone,
            searches=self.searches,
            has_searched=self.has_searched,
            works_on=self.has_searched or (self.has_trained and not self.has_waited),
            is_alive=alive,
            is_awaited=awaited,
            is_to_start=self.is_to_start,
            is_restart_due=self.is_restart_due,
            is_stopping=self.is_stopping,
            is_frozen=self.frozen_by is not None,
            waits_for_peers=self.waits_since is not None,
            answer_by=self.answer_by if alive or awaited else None,
        )

    def after(self, report: msg.TaskReport, now: float) -> Member:
        """Return the task after its `report`."""
        match report:
            case msg.Progress(step=step, epochs=epochs, steps_per_epoch=per_epoch):
                return replace(
                    self,
                    waits_since=None,
                    has_joined=True,
                    has_trained=True,
                    step=step,
                    epochs=epochs or self.epochs,
                    steps_per_epoch=per_epoch or self.steps_per_epoch,
                    total_steps=report.total_steps or self.total_steps,
                    heard_at=now,
                )
            case msg.WaitingForPeers():
                since = now if self.waits_since is None else self.waits_since
                return replace(self, waits_since=since, has_waited=True)
            case msg.MeetsPeers():
                return replace(self, meets_peers=True)
            case msg.Reduces():
                return replace(self, reduces=True)
            case msg.Trains(way=way):
                return replace(self, way=way)
            case msg.Restored(names=names):
                return replace(self, restored=tuple(sorted(names)))
            case msg.FirstBatches(fingerprints=found):
                return replace(self, first_batches=tuple(found))
            case msg.Sharded(shards=number, index=index):
                return replace(self, shards=(*self.shards, (number, index))[:MOST_SHARDS])
            case msg.TaskReady():
                return replace(self, waits_since=None, has_joined=True)
            case msg.Serving():
                return replace(self, serves=True)
            case msg.SavesOnSigterm():
                return replace(self, saves_on_sigterm=True)
            case msg.Saved(step=saved):
                return replace(self, saved=True, saved_step=saved)
            case msg.SavedElsewhere(step=saved):
                return replace(self, saved_step=saved)
            case msg.Evaluated(step=evaluated):
                return replace(self, has_evaluated=True, evaluated_step=evaluated)
            case msg.TrialEnded() | msg.Trial(status="COMPLETED" | "FAILED"):
                return replace(self, trials_ended=self.trials_ended + 1)
            case msg.TaskError() if not self.is_stopping:
                return replace(self, raised=vars(report))
            case msg.Doubt(about=about) if not self.is_stopping:
                return replace(self, doubts={**self.doubts, about: report})
            case msg.DoubtOver(about=about):
                left = {name: doubt for name, doubt in self.doubts.items() if name != about}
                return replace(self, doubts=left)
            case msg.SearchEnded():
                return replace(self, has_searched=True)
            case msg.Verdict(reason=reason):
                return replace(self, verdict=reason)
        return self

    def stop_grace_s(self, most_s: float) -> float:
        """Return how many seconds a requested stop waits between SIGTERM and SIGKILL."""
        if self.waits_for_peers:
            return 0.0
        if self.saves_on_sigterm:
            return most_s
        return min(most_s, BOOT_GRACE_S if self.is_hooked else COMMAND_GRACE_S)

    def fails(self, **facts: Any) -> Failure:
        """Return its `Failure`; `facts` are further fields of that."""
        ended = self.exit
        end = {
            "exit_code": ended.exit_code if ended else None,
            "signal": ended.signal if ended else None,
        }
        return Failure(
            task=self.name,
            node=self.node,
            attempt=self.attempt,
            saved=self.saved,
            asks_for_keras_3=self.asks_for_keras_3,
            is_cut_off=self.is_cut_off,
            keras_patch=self.keras_patch,
            backend=self.backend,
            **(end | facts),
        )


def member_of(plan: Plan, task: TaskPlan, attempt: int) -> Member:
    return Member(
        task.id,
        task.node,
        serves=task.id.job == "ps",
        is_hooked=plan.is_hooked(task),
        restarts_alone=restarts_alone(plan, task.id),
        searches=plan.kind == "tuner",
        asks_for_keras_3=asks_for_keras_3(task.command.env),
        is_cut_off=task.node in plan.cut_off,
        keras_patch=keras_patch(task.command.env, is_hooked=plan.is_hooked(task)),
        backend=plan.nodes[0].backend,  # only local and ssh, which have no hints, are mixed
        attempt=attempt,
    )
