"""Keeps the tasks of a run with their failures, grouped by standing."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tfcluster.agent import budgets, message_fields
from tfcluster.agent import catalogue as msg
from tfcluster.errors import join_first
from tfcluster.node_loss import LossNature, NodeLoss
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.rundir.events import TaskExited
from tfcluster.supervision.decisions import Next, judge
from tfcluster.supervision.doubts import explain_lone_work
from tfcluster.supervision.failure import (
    PREEMPTED,
    TERMINATED,
    Failure,
    Kind,
    kind_of_loss,
)
from tfcluster.supervision.known_errors import KnownError
from tfcluster.supervision.member import Member, member_of
from tfcluster.supervision.restart_policy import chief_among
from tfcluster.supervision.verdicts import root_cause

_SHOWN_FILES = 3


@dataclass
class SharedFiles:
    """The files that tasks report as written, and those that two tasks of one attempt share.

    The hooks make the saves of TensorFlow and Keras safe (docs/guides/checkpoints.md). What a
    script writes itself, for example with `np.save`, tfcluster can only name when the run ends.
    """

    workdir: str
    """Paths below it are shown relative to it."""
    checkpoints_dir: str | None = None
    """The folder that is `TFCLUSTER_CHECKPOINT_DIR` for all tasks; None: each has its own."""
    _writers: dict[str, tuple[int, str]] = field(default_factory=dict)
    """File → the attempt and the task that wrote it first."""
    _shared: dict[tuple[str, int], tuple[str, list[str]]] = field(default_factory=dict)
    """File and attempt → its path and the tasks that wrote it."""

    def note(self, task: str, attempt: int, files: Sequence[msg.WrittenFile]) -> None:
        """Note files that a task has opened for writing."""
        for written in files:
            before, writer = self._writers.get(written.file, (0, ""))
            if before != attempt:
                if written.file in self._writers or len(self._writers) < budgets.WRITTEN_FILES:
                    self._writers[written.file] = attempt, task
            elif writer != task:
                key = written.file, attempt
                _, tasks = self._shared.setdefault(key, (written.path, [writer]))
                if task not in tasks:
                    tasks.append(task)

    def warning(self) -> str | None:
        """Return one sentence about all files that two tasks wrote in one attempt, or None."""
        shared = dict(self._shared.values())
        if not shared:
            return None
        named = [f"{self.show(path)} ({_writers(tasks)})" for path, tasks in shared.items()]
        own = "below $TFCLUSTER_CHECKPOINT_DIR, which each task has for itself"
        if self.checkpoints_dir is not None:
            own = "under a name that contains $TFCLUSTER_TASK"
        return (
            "two tasks wrote the same file, which now holds what one of them wrote last, or a mix:"
            f" {join_first(named, _SHOWN_FILES)}. Write it in the first worker only, or {own}"
        )

    def show(self, path: str) -> str:
        """Return `path` as the user knows it."""
        place = Path(path)
        return str(place.relative_to(self.workdir) if place.is_relative_to(self.workdir) else path)


def _writers(tasks: Sequence[str]) -> str:
    in_order = sorted(tasks, key=lambda task: (len(task), task))  # worker:10 after worker:2
    return join_first(in_order, 2)


@dataclass
class Gang:
    """The tasks of a run, in the plan's order, each in its newest attempt."""

    plan: Plan
    chief: TaskId = field(init=False)
    """The task whose exit and checkpoints count; a smaller gang may have another one."""
    number: int = 0
    """The gang's present attempt; a task that restarts alone may be in a later one.

    Before the first one: the last attempt of an earlier coordinator, or 0."""
    failures: list[Failure] = field(default_factory=list)
    """Failures of this attempt, in order of arrival, without those in `task_failures`."""
    task_failures: list[Failure] = field(default_factory=list)
    """Failures of tasks that restart alone and have not been restarted since."""
    has_started: bool = False
    """True once any task has run, in this attempt or in an earlier one."""
    shared_files: SharedFiles = field(init=False)
    """The files that two tasks wrote, in any attempt."""
    saved_model: str | None = None
    """The newest model that the chief has left at its end, outside its checkpoint directory."""
    is_announced: bool = False
    """True once the scheduler of the nodes ends them: it has signalled the tasks, too."""
    _has_trained: bool = False
    _settings_read: set[str] = field(default_factory=set)
    _members: dict[str, Member] = field(default_factory=dict)
    _standing: dict[str, tuple[object, ...]] = field(default_factory=dict)
    _alike: dict[tuple[object, ...], dict[str, Member]] = field(default_factory=dict)
    """Standing → the members that have it, by name."""
    _waiting: dict[str, float] = field(default_factory=dict)
    """The core members that wait for their peers → since when, the longest wait first."""

    def __post_init__(self) -> None:
        self.chief = self.plan.chief
        self.shared_files = SharedFiles(self.plan.workdir, self.plan.checkpoints.dir)
        for task in self.plan.tasks:
            self.put(member_of(self.plan, task, 1))

    # -- members ----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __getitem__(self, task: str) -> Member:
        return self._members[task]

    def get(self, task: str, attempt: int | None = None) -> Member | None:
        """Return the member called `task`, or None if `attempt` is not its present one."""
        member = self._members.get(task)
        return member if member is None or attempt in (None, member.attempt) else None

    def put(self, member: Member) -> None:
        """Add `member`, or replace the one with its name: no member changes in another way."""
        name, standing = member.name, member.standing
        self._members[name] = member
        self.has_started |= member.is_started
        self._has_trained |= member.has_trained
        before = self._standing.get(name)
        if before is not None and before != standing:
            del self._alike[before][name]
            if not self._alike[before]:
                del self._alike[before]
        self._standing[name] = standing
        self._alike.setdefault(standing, {})[name] = member
        since = member.waits_since if member.is_running and member.is_core else None
        if since != self._waiting.get(name):
            self._waiting.pop(name, None)
            if since is not None:
                self._waiting[name] = since

    def enlist(self, members: Iterable[TaskId], number: int) -> list[TaskId]:
        """Begin attempt `number` of `members`; return the tasks to start.

        An evaluator that runs, or has ended for good, stays in its attempt. A task may be new:
        the gang grows.
        """
        before, requested, to_start = self._members, set(members), []
        self.chief = chief_among(self.plan, requested)
        self.number, self.failures = number, []
        self._members, self._standing, self._alike, self._waiting = {}, {}, {}, {}
        for task in self.plan.tasks:
            if task.id not in requested:
                continue
            member = before.get(str(task.id)) or member_of(self.plan, task, number)
            must_start = member.is_lost or member.is_restart_due or member.is_to_start
            if number == 1 or member.is_core or must_start:
                self._drop_failures(member)
                member = member_of(self.plan, task, number)
                to_start.append(task.id)
            self.put(member)
        return to_start

    def renew(self, member: Member) -> Member:
        """Replace `member` by its next attempt, and return that."""
        self._drop_failures(member)
        renewed = member_of(self.plan, self.plan.task(member.id), member.attempt + 1)
        self.put(replace(renewed, serves=member.serves))
        return renewed

    # -- questions --------------------------------------------------------------------------

    @property
    def distinct(self) -> list[Member]:
        """One member of each standing."""
        return [next(iter(members.values())) for members in self._alike.values()]

    @property
    def chief_member(self) -> Member | None:
        return self.get(str(self.chief))

    @property
    def attempt(self) -> int:
        """The highest attempt number of any member."""
        return max(member.attempt for member in self)

    @property
    def waits_since(self) -> float | None:
        """The time since which a core member has waited for its peers: the longest wait."""
        return next(iter(self._waiting.values()), None)

    @property
    def is_nearly_over(self) -> bool:
        """True if a trainer has ended, or the chief has taken the last step that it announced."""
        chief = self.chief_member
        return any(m.is_over and m.is_core for m in self) or (chief is not None and chief.is_done)

    def judge(self) -> Next:
        """Return the next step of the run."""
        return judge(self.distinct, chief=self.chief_member, forms_gang=self.plan.forms_gang)

    def members(self, fits: Callable[[Member], bool]) -> list[Member]:
        """Return the members that fit, in the plan's order; `fits` looks at their standing only."""
        fitting = {member.standing for member in self.distinct if fits(member)}
        if not fitting:
            return []
        standings = self._standing.items()
        return [self._members[name] for name, standing in standings if standing in fitting]

    def running(self) -> list[Member]:
        return self.members(lambda member: member.is_running)

    def core(self) -> list[Member]:
        """Return all members of which no attempt does without one; see `TaskId.is_in_gang`."""
        return [member for member in self if member.is_core]

    def active(self, fits: Callable[[Member], bool] = lambda _: True) -> list[Member]:
        """Return the running members that fit (see `members`) and are not being stopped."""
        return self.members(lambda m: m.is_running and not m.is_stopping and fits(m))

    def idle(self) -> list[Member]:
        """Return the running tasks that must be stopped once the chief has ended."""
        return self.active(self.needless())

    def needless(self) -> Callable[[Member], bool]:
        """Return whether a member is no longer needed once the chief has ended.

        These are tuners that wait for the chief, all servers once no worker trains any more, and
        the tf.data service once no evaluator could read from it, either.
        """
        working = [
            member.is_core
            for member in self.distinct
            if member.is_running and not (member.serves or member.waits_for_chief)
        ]
        trains, reads = any(working), bool(working)
        return lambda member: (
            member.waits_for_chief
            or (member.serves and not (reads if member.id.serves_data else trains))
        )

    def frozen(self) -> list[Member]:
        """Return the tasks that are stopped (SIGSTOP) while others fail as a consequence."""
        stopped = self.active(lambda member: member.frozen_by is not None)
        return [member for member in stopped if member.is_core and not member.restarts_alone]

    def unfinished(self) -> list[Member]:
        """Return the workers that still run after the chief and are known to work independently.

        Workers that train in step with the chief lose nothing; what a task without hooks does is
        not known; the chief has recorded a tuner's trials.
        """
        return [
            member
            for member in self.core()
            if member.is_running
            and member.is_hooked
            and not (member.serves or member.searches or member.trains_in_step)
        ]

    def done_evaluators(self, last_step: int | None) -> list[Member]:
        """Return the running evaluators that have evaluated the last checkpoint.

        Some of them would wait for a further one for ever.
        """
        return [
            member
            for member in self.active(lambda member: not member.is_core)
            if last_step is not None
            and member.evaluated_step is not None
            and member.evaluated_step >= last_step
        ]

    def unread_settings(self) -> str | None:
        """Return a warning about settings that no task has read although some trained, or None."""
        unread = {k: v for k, v in self.plan.settings.items() if k not in self._settings_read}
        has_trained = self._has_trained or any(member.is_ok for member in self)
        return warn_about_unread(unread) if has_trained and unread else None

    def lost_model(self, exists: Callable[[str], bool]) -> str | None:
        """Return a warning if the model that the chief has left is gone, or None.

        `exists` is asked about a path of this machine: other nodes are not asked.
        """
        path, chief = self.saved_model, self.chief_member
        if path is None or chief is None or not self.plan.node(chief.node).is_here or exists(path):
            return None
        return (
            f"{self.shared_files.show(path)}, saved by {self.chief}, no longer exists: another"
            " task may have removed it, or a folder above it"
        )

    # -- reports, ends and failures ---------------------------------------------------------

    def note_report(self, member: Member, report: msg.TaskReport, now: float) -> None:
        """Note a task's report about itself."""
        self.put(member.after(report, now))
        if isinstance(report, msg.SettingRead):
            self._settings_read.add(report.name)
        elif isinstance(report, msg.Wrote):
            self.shared_files.note(member.name, member.attempt, report.files)
        elif isinstance(report, msg.SavedModel) and member.id == self.chief:
            self.saved_model = report.path

    def lose_node(self, node: str, loss: NodeLoss, *, chief_done: bool = False) -> list[str]:
        """Mark all tasks of `node` that have not ended as lost, and return them.

        After the chief's success those that run are no longer needed, unless they are known to work
        independently.
        """
        lost = [member for member in self if member.node == node and not member.is_over]
        unfinished = {member.name for member in self.unfinished()}
        for member in lost:
            is_free = chief_done and member.is_running and member.name not in unfinished
            lost_member = replace(member, is_lost=True, is_cancelled=member.is_cancelled or is_free)
            failure = replace(
                lost_member.bare_failure,
                observed=kind_of_loss(loss.nature),
                description=loss.reason,
                loss=loss.nature,
            )
            self._note(lost_member, failure)
        return [member.name for member in lost]

    def note_exit(
        self, member: Member, event: TaskExited, *, error: Mapping[str, Any] | None, last_lines: str
    ) -> None:
        """Note the end of a task; `error` is the exception it reported, if any."""
        member = replace(member, exit=event, frozen_by=None)
        self.put(member)
        if member.failure is not None:
            return
        if event.ended_by == "tfcluster":
            if error is not None and self._fails_by_itself(member, error):
                failure = replace(member.bare_failure, error=error, exit_code=None, signal=None)
                self._note(member, failure)
        elif event.signal is None and member.reported_failure is not None:
            self.blame(member, Kind.PERMANENT, member.reported_failure)
        elif event.exit_code != 0:
            failure = replace(
                member.bare_failure,
                error=error,
                last_lines=last_lines,
                out_of_memory=event.out_of_memory,
            )
            self._note(member, failure)
            if not any(member.is_running and member.trains_together for member in self.distinct):
                self.explain_lone_work()

    def explain_lone_work(self) -> bool:
        """Explain the first failure by peers that have ended with 0, if no other cause has come.

        A peer that has ended before its training was over is to blame.

        TensorFlow blames the end of a peer, with an error of its own, where a task trains, saves or
        evaluates after its peers have left. Return whether the failure is explained.
        """
        finished = self.finished()
        if not finished or any(not failure.is_collateral for failure in self.failures):
            return False
        for number, failure in enumerate(self.failures):
            member = self[failure.task]
            if not member.trains_together:
                continue
            blamed, description, known = explain_lone_work(member, finished, failure.place)
            if blamed is not member:
                self.blame(blamed, Kind.PERMANENT, description, known=known)
                return True
            explained = replace(
                failure, observed=Kind.PERMANENT, description=description, known=known
            )
            self.failures[number] = explained
            self.put(replace(member, failure=explained))
            return True
        return False

    def finished(self) -> list[Member]:
        """Return the tasks that have trained together with others and ended with 0.

        None is returned where some tasks are elsewhere, as these may be the cause of any failure,
        and with parameter servers, as workers train by themselves then.
        """
        has_servers = any(task.id.job == "ps" for task in self.plan.tasks)
        if self.plan.kind != "training" or self.plan.elsewhere or has_servers:
            return []
        return self.members(lambda member: member.trains_together and member.is_ok)

    def correct_ended_by(self, event: TaskExited, error: Mapping[str, Any] | None) -> TaskExited:
        """Return `event`, with `ended_by="itself"` where the task was already failing by itself.

        Such a task raised its own exception before its agent stopped it. A task that its node's
        scheduler has asked to end (`is_announced`), and that obeys, was stopped.
        """
        member = self.get(event.task, event.attempt)
        if self.is_announced and event.ended_by == "itself":
            obeys = event.signal == signal.SIGTERM or event.exit_code in (PREEMPTED, TERMINATED)
            return message_fields.replace(event, ended_by="tfcluster") if obeys else event
        if member is None or event.ended_by != "tfcluster" or not event.exit_code:
            return event
        is_own = self._fails_by_itself(member, error, event.exit_code)
        return message_fields.replace(event, ended_by="itself") if is_own else event

    def _fails_by_itself(
        self, member: Member, error: Mapping[str, Any] | None, exit_code: int | None = None
    ) -> bool:
        """Return whether a task that was asked to stop would have failed anyway.

        This is so where it reported an exception before, where `error` is the root cause's own
        exception, and where both reject the arguments that they share.
        """
        if member.raised is not None:
            return True
        cause = root_cause(self.failures or self.task_failures)
        if cause is None or cause.is_collateral:
            return False
        if error is None:
            return cause.refused_arguments is not None and cause.exit_code == exit_code
        return Failure(member.name, None, None, error=error).signature == cause.signature

    def blame(
        self,
        member: Member,
        kind: Kind,
        description: str,
        *,
        loss: LossNature | None = None,
        known: KnownError | None = None,
    ) -> None:
        """Note a failure that tfcluster itself observed; the task must be stopped.

        A task that is late because it has raised an exception fails with that exception.
        """
        if kind is Kind.LATE and member.raised is not None:
            failure = replace(member.bare_failure, error=member.raised)
        else:
            failure = replace(
                member.bare_failure, observed=kind, description=description, loss=loss, known=known
            )
        self._note(member, failure)

    def _drop_failures(self, member: Member) -> None:
        """Drop the failures of a task that is restarted: they no longer decide the outcome."""
        failures = self.task_failures
        self.task_failures = [failure for failure in failures if failure.task != member.name]

    def _note(self, member: Member, failure: Failure) -> None:
        self.put(replace(member, failure=failure))
        (self.task_failures if member.restarts_alone else self.failures).append(failure)


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


def warn_about_unread(settings: Mapping[str, object]) -> str:
    """Return a warning about the `settings` that no task has read, with the fix."""
    known = {name: _FIELDS.get(name, (name, "")) for name in settings}
    fields = ", ".join(f"{known[name][0]} = {value}" for name, value in settings.items())
    calls = " and ".join(dict.fromkeys(call for _, call in known.values() if call))
    fix = f". The script must call {calls}" if calls else ""
    return f"no task has read {fields}: it had no effect{fix}"
