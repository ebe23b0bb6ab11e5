"""The signs of life of one attempt: how long nothing has happened, and when that is too long.

Two limits count. A run that takes no step for much longer than usual is *stalled*: it is shown so,
with who is waited for, and goes on. With `supervision.stall_deadline_s` a silence that also covers
output ends in a restart. Times are seconds of the coordinator's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from tfcluster.agent import catalogue as msg
from tfcluster.errors import signal_name
from tfcluster.plans.plan import Supervision
from tfcluster.rundir import events as ev
from tfcluster.supervision import stalls
from tfcluster.supervision.gang import Gang
from tfcluster.supervision.stalls import Activity, Position, Stall

STALLED_S: Final = 10.0
"""The shortest silence of a stalled run."""
_STALLED_STEPS: Final = 10.0
"""The silence of a stalled run, in usual steps."""
_GAPS_ALLOWED: Final = 3.0
"""The silence allowed in any case, as a multiple of the longest gap between two reports so far."""
_CLOCK_TICK_S: Final = 0.1
"""A file's time may be that much earlier than the time at which it was written."""
HINT_S: Final = 20.0
"""The time after the last start or join at which a run without any report gets a hint."""
REPORTS_NOTHING: Final = (
    "no task has reported a step yet. Keras and Estimator report by themselves; in its own training"
    " loop a script calls tfcluster_workers.reporting.progress(step, total=…)"
)
BUSY: Final = 2.0
"""The load per core from which on a node is so busy that a longer silence is normal."""
ENDING_S: Final = 60.0
"""The silence allowed once tasks end: tf.data's threads and atexit handlers, while a chief that is
left evaluates and exports."""
TRAINS_IN_CHILD: Final = (
    "no task has reported a step yet. {task} seems to train in a child process that started without"
    " tfcluster's hooks: `{command}`. Start that script directly: `tfcluster run SCRIPT`, or"
    " job.script in the spec (`tfcluster help guides/your_own_script#child-process`)"
)

_SIGNS: Final = (msg.Progress, msg.Alive, msg.Evaluated, msg.Saved, msg.SavedElsewhere)
_WORK: Final = (*_SIGNS, msg.Trial)


@dataclass(slots=True)
class UsualStep:
    """The mean time between two calls of the training function, from the reports of one task."""

    task: str
    """The first task that has reported a step."""
    began_at: float
    first: int
    ended_at: float
    last: int
    per_call: int = 1
    """The steps of one call (`steps_per_execution`)."""
    _before: float | None = None
    """The time in an earlier training of the same attempt."""

    @classmethod
    def of(cls, report: msg.Progress, now: float) -> UsualStep:
        return cls(report.task, now, report.step, now, report.step, report.steps_per_execution or 1)

    def after(self, report: msg.Progress, now: float) -> UsualStep:
        """Return the mean after another report."""
        if report.task != self.task or report.step == self.last:
            return self
        if report.step < self.last:  # another training
            return replace(UsualStep.of(report, now), _before=self.seconds)
        return replace(self, ended_at=now, last=report.step)

    @property
    def seconds(self) -> float | None:
        """The mean time; None before the second report."""
        steps = self.last - self.first
        return self.per_call * (self.ended_at - self.began_at) / steps if steps else self._before


@dataclass(slots=True)
class Silence:
    """The signs of life of one attempt."""

    heard_at: float | None = None
    """The last report of work after the first step; None before it."""
    written_at: float = 0.0
    """The last time that a task wrote a line, as far as the logs were read."""
    longest_gap_s: float = 0.0
    stall: Stall | None = None
    """The explanation of the present silence; None while the run is not stalled."""
    stalled_since: float = 0.0
    """The last report before the present or the last stall."""
    is_heard: bool = False
    """True once a task has reported any work, or the user was told that none does."""
    unheard_child: tuple[str, str] | None = None
    """The task that seems to train in a child without hooks, and the child's command."""
    _stacks: tuple[float, float] = (0.0, 0.0)
    """The time in which the tasks may have written the stacks that they were last asked for."""
    _usual: UsualStep | None = None
    _allowed_until: float = 0.0
    """The time until which a silence is explained by work that takes long."""
    _ready_at: float | None = None
    _started_at: float = 0.0
    """The time of the last start of a task."""
    _began_at: float | None = None
    """The time of the last start or join of a task."""

    def note_start(self, now: float) -> None:
        """Note that a task has started."""
        self._began_at = self._started_at = now

    def note(self, report: msg.TaskReport, now: float) -> None:
        """Note a report of a task of the gang."""
        self.is_heard |= isinstance(report, _WORK)
        if isinstance(report, msg.TaskReady):
            self._began_at = now
        elif isinstance(report, msg.TaskPhase):  # importing TensorFlow can take longer than that
            self._began_at = None if report.name else now
        match report:
            case msg.Progress():
                since = self.heard_at
                if since is None and report.steps_per_execution:
                    since = self._ready_at  # its first execution was as long as the next will be
                if since is not None:
                    self.longest_gap_s = max(self.longest_gap_s, now - since)
                before = self._usual
                self._usual = before.after(report, now) if before else UsualStep.of(report, now)
                self.heard_at = now
            case msg.TaskReady() if self._ready_at is None:
                self._ready_at = now
            case msg.TrainsInChild(command=command):
                self.unheard_child = report.task, command
            case msg.Alive() | msg.Evaluated() | msg.Saved() | msg.SavedElsewhere():
                self.heard_at = None if self.heard_at is None else now

    def note_end(self, now: float) -> None:
        """Note that a task has ended: what the others do next takes its time."""
        self.heard_at = None if self.heard_at is None else now

    def note_output(self, at: float) -> None:
        """Note that a task has written a line at `at`; stacks that it was asked for are none."""
        begin, end = self._stacks
        if not begin <= at <= end:
            self.written_at = max(self.written_at, at)

    def note_stacks(self, last_output: float, begin: float, end: float) -> None:
        """Note that the tasks are asked for their stacks at `begin`; they answer before `end`."""
        self.note_output(last_output)
        self._stacks = begin - _CLOCK_TICK_S, end

    @staticmethod
    def is_sign(report: msg.TaskReport) -> bool:
        """Return whether a report means that the run goes on."""
        return isinstance(report, _SIGNS)

    @property
    def hint_due(self) -> float | None:
        """The time of the hint how to report progress; None once something was reported."""
        return None if self.is_heard or self._began_at is None else self._began_at + HINT_S

    def describe_stall(self, now: float) -> str:
        """Return since when the run stalls, and why; empty if it does not."""
        if self.stall is None:
            return ""
        silence = f"it had taken no step for {now - self.stalled_since:.0f} s"
        return ": ".join(filter(None, [silence, self.stall.what]))

    def stall_due(self, policy: Supervision) -> float | None:
        """Return from when on the run is stalled; None before the first step, or if it is."""
        if self.heard_at is None or self.stall is not None:
            return None
        limit_s = self.limit_s
        if policy.stall_deadline_s is not None:  # which needs the explanation
            limit_s = min(limit_s, self._deadline_s(policy.stall_deadline_s))
        return max(self.heard_at + limit_s, self._allowed_until)

    @property
    def limit_s(self) -> float:
        """The silence of a stalled run.

        Before the second report of a step, the first one is all that is known of their duration.
        """
        usual = self._usual
        if usual is None or usual.seconds is None:
            longest_s = usual.began_at - self._started_at if usual is not None else 0.0
            return max(STALLED_S, _GAPS_ALLOWED * max(longest_s, self.longest_gap_s))
        return max(STALLED_S, _STALLED_STEPS * usual.seconds, _GAPS_ALLOWED * self.longest_gap_s)

    def deadline(self, policy: Supervision) -> float | None:
        """Return when `stall_deadline_s` has passed; None without one or before the first step."""
        if self.heard_at is None or policy.stall_deadline_s is None:
            return None
        since = max(self.heard_at, self.written_at)
        return since + self._deadline_s(policy.stall_deadline_s)

    def _deadline_s(self, limit_s: float) -> float:
        return max(limit_s, _GAPS_ALLOWED * self.longest_gap_s)

    def judge(
        self,
        positions: Mapping[str, Position],
        gang: Gang,
        policy: Supervision,
        load: float,
        now: float,
    ) -> ev.Stalled | None:
        """Return the event that the run is stalled, and why; None while a task may take so long.

        `load`: that of the busiest node, per core.
        """
        due, since = self.stall_due(policy), self.heard_at
        if due is None or since is None or due > now:
            return None
        if any(at.activity is Activity.TRACES for at in positions.values()):
            self._allowed_until = now + self.limit_s
            return None
        until = since + self.limit_s * load / BUSY
        if (deadline := self.deadline(policy)) is not None:
            until = min(until, deadline)
        if until > now:  # on a machine with too much work, a step takes that much longer
            self._allowed_until = until
            return None
        has_ended = any(member.is_over for member in gang.core())
        is_ending = has_ended or any(at.activity is Activity.EXITS for at in positions.values())
        if is_ending and since + ENDING_S > now:
            self._allowed_until = since + ENDING_S
            return None
        self.stall, self.stalled_since = explain_silence(gang, positions), since
        return ev.Stalled(
            silent_s=round(now - since, 1),
            deadline_s=policy.stall_deadline_s,
            what=self.stall.what,
            causes=self.stall.causes,
            tasks=self.stall.tasks,
        )

    def end_stall(self, now: float) -> ev.StallEnded | None:
        """Return the event that the run goes on; None if it was not stalled."""
        if self.stall is None:
            return None
        self.stall = None
        return ev.StallEnded(silent_s=round(now - self.stalled_since, 1))

    @property
    def hint(self) -> str:
        """The reason why no task may have reported a step, and what to do."""
        if self.unheard_child is None:
            return REPORTS_NOTHING
        task, command = self.unheard_child
        return TRAINS_IN_CHILD.format(task=task, command=command)


def explain_silence(gang: Gang, positions: Mapping[str, Position]) -> Stall:
    """Return who is waited for and where, from the stacks of tasks that run."""
    stopped = {
        member.name: Position(Activity.STOPPED, detail=signal_name(member.frozen_by or 0))
        for member in gang.frozen()
    }
    every = {**positions, **stopped}
    known = {member.name: every[member.name] for member in gang if member.name in every}
    core = gang.core()
    running = [member for member in core if member.is_running]
    together = len(core) > 1 and all(m.trains_in_step and not m.restarts_alone for m in running)
    ended = [member.name for member in core if member.is_over]
    return stalls.explain_stall(known, ended=ended, together=together)
