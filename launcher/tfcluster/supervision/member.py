"""One task in one attempt as the supervisor knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tfcluster.agent import catalogue as msg
from tfcluster.plans.keras_settings import KerasPatch, asks_for_keras_3, keras_patch
from tfcluster.plans.plan import Plan, TaskId, TaskPlan
from tfcluster.rundir.events import TaskExited
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
    """True if it never ends by itself: a ps, of the tf.data service, a worker in `Server.join`."""
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
    follows: bool = False
    """True if it waits for further checkpoints until it is ended."""
    trials_ended: int = 0
    """The number of ended trials of a search: of this tuner, or for the chief, of all tuners."""
    has_searched: bool = False
    """True once its search is over: its further work needs no tuner."""
    reported_failure: str | None = None
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
        """False for an evaluator and the tf.data service: they go on when the gang is restarted."""
        return self.id.is_in_gang

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
    def advance(self) -> tuple[int, float]:
        """The order of tasks, the one furthest behind first: by step, then by the last report."""
        return (-1 if self.step is None else self.step), self.heard_at or 0.0

    @property
    def is_collateral(self) -> bool:
        """True if it failed, and its output says that another task's end caused this."""
        return self.failure is not None and self.failure.is_collateral

    @property
    def was_stopped(self) -> bool:
        """True if tfcluster has ended it, or no longer needs it."""
        is_stopped = self.exit is not None and self.exit.ended_by == "tfcluster"
        return self.is_cancelled or (is_stopped and self.failure is None)

    @property
    def may_run(self) -> bool:
        """True until it has ended for good: before its start and while a restart is due, too."""
        return not (self.is_over or self.is_cancelled) or self.is_restart_due

    @property
    def is_awaited(self) -> bool:
        """True after the order to start and before the answer: its process may already run."""
        return self.is_ordered and not self.is_started and not self.is_over

    @property
    def due_by(self) -> float | None:
        """The time by which its agent must report; equal for tasks that were ordered together."""
        return self.answer_by if self.is_running or self.is_awaited else None

    @property
    def works_on(self) -> bool:
        """True for a chief that needs no other task: its search is over, or it has no peers."""
        return self.has_searched or (self.has_trained and not self.has_waited)

    @property
    def trains_together(self) -> bool:
        """True for a task that takes its steps together with others: a worker or the chief."""
        return self.id.trains and not (self.restarts_alone or self.serves)

    @property
    def waits_for_chief(self) -> bool:
        """True for a tuner that asks its chief for work."""
        return self.restarts_alone and self.waits_for_peers

    @property
    def standing(self) -> tuple[object, ...]:
        """All facts that decide how the run goes on.

        A thousand tasks share a few standings: after an event one of each is asked, not all.
        """
        return (
            *(self.id.job, self.serves, self.restarts_alone, self.searches, self.has_searched),
            *(self.may_run, self.is_ok, self.was_stopped, self.is_collateral, self.works_on),
            *(self.is_running, self.is_awaited, self.is_to_start, self.is_restart_due),
            *(self.is_stopping, self.frozen_by is not None, self.waits_for_peers, self.due_by),
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
            case msg.FirstBatches(fingerprints=fingerprints):
                return replace(self, first_batches=tuple(fingerprints))
            case msg.Sharded(shards=number, index=index):
                return replace(self, shards=(*self.shards, (number, index))[:MOST_SHARDS])
            case msg.TaskReady():
                return replace(self, waits_since=None, has_joined=True)
            case msg.Serving():
                return replace(self, serves=True)
            case msg.SavesOnSigterm(is_over=is_over):
                return replace(self, saves_on_sigterm=not is_over)
            case msg.Saved(step=saved):
                return replace(self, saved=True, saved_step=saved)
            case msg.SavedElsewhere(step=saved):
                return replace(self, saved_step=saved)
            case msg.Evaluated(step=evaluated):
                follows = self.follows or report.follows
                return replace(self, has_evaluated=True, evaluated_step=evaluated, follows=follows)
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
                return replace(self, reported_failure=reason)
        return self

    def stop_grace_s(self, most_s: float) -> float:
        """Return how many seconds a requested stop waits between SIGTERM and SIGKILL."""
        if self.waits_for_peers:
            return 0.0
        if self.saves_on_sigterm:
            return most_s
        return min(most_s, BOOT_GRACE_S if self.is_hooked else COMMAND_GRACE_S)

    @property
    def bare_failure(self) -> Failure:
        """The failure of the task, without what is known of the reason."""
        return Failure(
            task=self.name,
            exit_code=self.exit.exit_code if self.exit else None,
            signal=self.exit.signal if self.exit else None,
            node=self.node,
            attempt=self.attempt,
            saved=self.saved,
            asks_for_keras_3=self.asks_for_keras_3,
            is_cut_off=self.is_cut_off,
            keras_patch=self.keras_patch,
            backend=self.backend,
        )


def member_of(plan: Plan, task: TaskPlan, attempt: int) -> Member:
    return Member(
        task.id,
        task.node,
        serves=task.id.job == "ps" or task.id.serves_data,
        is_hooked=plan.is_hooked(task),
        restarts_alone=restarts_alone(plan, task.id),
        searches=plan.kind == "tuner",
        asks_for_keras_3=asks_for_keras_3(task.command.env),
        is_cut_off=task.node in plan.cut_off,
        keras_patch=keras_patch(task.command.env, is_hooked=plan.is_hooked(task)),
        backend=plan.nodes[0].backend,  # only local and ssh, which have no hints, are mixed
        attempt=attempt,
    )
