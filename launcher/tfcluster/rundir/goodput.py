"""The goodput of a run: the share of its time in steps that count, and where the rest went.

The time is counted from the run's events alone, so the figures follow from ``events.jsonl``. Only
the steps of a training are counted: a search and `plain` tasks have no goodput. With parameter
servers the steps are those that the chief reports.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tfcluster.typed_json import object_to_json


class Part(StrEnum):
    """The parts of a run's time."""

    QUEUE = "queue"
    """The run waits for its nodes, or its job was ended and has not started again."""
    START = "start"
    """The run has its nodes and has taken no step yet."""
    STEPS = "steps"
    """Steps that count, with what runs between them: input, callbacks, validation, saves."""
    RESTART = "restart"
    """The time between the last step and the moment when all processes of a new attempt run."""
    RESTORE = "restore"
    """The time between that moment and the first step of the attempt, which it includes."""
    REPEATED = "repeated"
    """Steps that were done before, later than the checkpoint from which the attempt started."""
    STALLED = "stalled"
    """The time between the last sign of work and the end of a stall, or its restart."""
    SUSPENDED = "suspended"
    """The scheduler has stopped all processes."""
    OTHER = "other"
    """The time between the last step and the end of the last task: evaluation, export."""
    GATHERING = "gathering"
    """The rest: checkpoints and outputs are copied, and nodes are cleaned up."""


@dataclass(slots=True)
class Goodput:
    """The time of a run until its last event, by `Part`; times are seconds since 1970.

    The steps are those of the task that reported first in the attempt: the tasks of a synchronous
    training take them together, and any of them may be missing in a smaller gang.
    """

    since: float
    """The time until which the parts in `counted` reach; what follows is `doing`."""
    until: float
    """The time of the last event."""
    doing: str = Part.START
    counted: dict[str, float] = field(default_factory=dict)
    task: str | None = None
    """The task whose steps count."""
    step: int | None = None
    """The last step of `task`."""
    done_before: int | None = None
    """The highest step of earlier attempts, until this one is beyond it."""
    exited_at: float | None = None
    """The time of the last exit of a task since `since`."""
    restarts: int = 0
    """The restarts that interrupted the steps: of the gang, or of the whole job."""
    lost_steps: int = 0
    """The steps that restarts cost: those of the interrupted attempts after the checkpoint from
    which the next attempt started."""

    @property
    def seconds(self) -> dict[str, float]:
        """Part → seconds until the last event; parts without any time are left out."""
        seconds = dict(self.counted)
        for part, spent in self._uncounted():
            seconds[part] = seconds.get(part, 0.0) + max(0.0, spent)
        return {str(p): s for p in Part if (s := round(seconds.get(p, 0.0), 3)) > 0}

    @property
    def share(self) -> float | None:
        """The goodput, 0 to 1; None before the first step."""
        seconds = self.seconds
        if self.step is None or not seconds:
            return None
        return round(seconds.get(Part.STEPS, 0.0) / sum(seconds.values()), 4)

    @property
    def has_resumed(self) -> bool:
        """True if the steps go on, or have gone on, after the last restart."""
        return self.restarts > 0 and self.doing not in (Part.RESTART, Part.RESTORE, Part.QUEUE)

    @property
    def restart_cost(self) -> dict[str, float]:
        """Mean seconds per restart of the parts that restarts cause; empty without a restart."""
        seconds = self.seconds if self.restarts else {}
        causes = (Part.RESTART, Part.RESTORE, Part.REPEATED)
        return {str(p): round(seconds[p] / self.restarts, 3) for p in causes if p in seconds}

    def to_json(self) -> dict[str, Any]:
        """Return the figures, and the fields from which `from_json` makes the value again."""
        figures = {"share": self.share, "seconds": self.seconds, "restart_cost": self.restart_cost}
        return figures | object_to_json(self)

    def take_step(self, task: str, step: int, now: float, *, per_call: int = 1) -> None:
        """Note that `task` has reported `step`, the last one of the `per_call` of a call."""
        if self.doing == Part.STEPS:
            if task != self.task:
                return
            known = self._known_part(step)
            self._count(self.since + known * max(0.0, now - self.since), Part.REPEATED)
            self._count(now, Part.STEPS)
        elif self.doing in (Part.START, Part.RESTORE, Part.STALLED):
            if self.doing == Part.RESTORE and self.step is not None:
                self.lost_steps += max(0, self.step - (step - per_call))
            self._count(now)
            self.doing, self.task = Part.STEPS, task
        else:
            return  # a late report of the attempt before
        self.step = step
        if self.done_before is not None and step >= self.done_before:
            self.done_before = None

    def start_process(self, now: float) -> None:
        """Note that a process has started, of a new attempt if the steps were interrupted."""
        if self.doing in (Part.RESTART, Part.RESTORE):
            self._count(now, Part.RESTART)
            self.doing = Part.RESTORE

    def interrupt(self, now: float) -> None:
        """Note that the steps end here, and that what follows the last one belongs to a restart."""
        self.end_stall(now)
        if self.doing == Part.STEPS:
            self.doing = Part.RESTART
            self.restarts += 1
            self.done_before = max(self.step or 0, self.done_before or 0)
        self.exited_at = None

    def stall(self, silent_s: float, now: float) -> None:
        """Note that no task has shown work for `silent_s`. Before a first step that is no stall."""
        if self.doing == Part.STEPS:
            self._count(max(self.since, now - silent_s))
            self.doing = Part.STALLED

    def end_stall(self, now: float) -> None:
        if self.doing == Part.STALLED:
            self._count(now)
            self.doing = Part.STEPS

    def suspend(self, seconds: float, now: float) -> None:
        """Take `seconds` from the part before; a task may have taken a step since they ended."""
        spent = min(seconds, max(0.0, now - self.since))
        self._count(now - spent)
        self._count(now, Part.SUSPENDED)
        part = self._part
        missing = min(seconds - spent, self.counted.get(part, 0.0))
        self.counted[part] = self.counted.get(part, 0.0) - missing
        self.counted[Part.SUSPENDED] += missing

    def enter_queue(self, now: float) -> None:
        self.interrupt(now)
        self._count(now)
        self.doing = Part.QUEUE

    def leave_queue(self, now: float) -> None:
        if self.doing == Part.QUEUE:
            self._count(now)
            self.doing = Part.START if self.step is None else Part.RESTART

    def _known_part(self, step: int) -> float:
        """Return which part of the steps from the last one to `step` was done before, 0 to 1."""
        if self.done_before is None or self.step is None:
            return 0.0
        if step <= self.done_before:
            return 1.0
        return (self.done_before - self.step) / (step - self.step)

    @property
    def _part(self) -> str:
        is_known = self.doing == Part.STEPS and self.done_before is not None
        return Part.REPEATED if is_known else self.doing

    def _count(self, until: float, part: str | None = None) -> None:
        """Add the time since `since` to a part, by default to the present one."""
        part = part or self._part
        self.counted[part] = self.counted.get(part, 0.0) + max(0.0, until - self.since)
        self.since, self.exited_at = until, None

    def _uncounted(self) -> Iterator[tuple[str, float]]:
        """Yield part and seconds of the time since `since`."""
        if self.exited_at is None:
            yield self._part, self.until - self.since
        else:
            before = Part.OTHER if self.doing == Part.STEPS else self.doing
            yield before, self.exited_at - self.since
            yield Part.GATHERING, self.until - self.exited_at
