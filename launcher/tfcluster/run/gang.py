"""The tasks of one attempt as the coordinator sees them: who runs, who may save, who has failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tfcluster.plan.plan import Plan, TaskId
from tfcluster.run.ending import TaskEnd
from tfcluster.run.events import TaskExited
from tfcluster.run.failure import Failure, Kind
from tfcluster.run.settings_read import SettingsRead

BOOT_GRACE_S = 2.0
"""For tasks started through our boot that cannot save: MultiWorkerMirroredStrategy swallows SIGTERM
(tensorflow/core preemption_notifier.cc), so waiting longer is in vain."""
COMMAND_GRACE_S = 10.0
"""For tasks of which nothing is known (docker stop's default)."""

_LATE = "it did not end while the others failed because of it: stopped, hung or cut off"


@dataclass(slots=True)
class Member:
    """One task of the attempt."""

    id: TaskId
    node: str
    serves: bool
    is_hooked: bool
    """Started through `tfcluster_workers.boot`."""
    is_started: bool = False
    is_lost: bool = False
    has_trained: bool = False
    is_stopping: bool = False
    waits_for_peers: bool = False
    saves_on_sigterm: bool = False
    exit: TaskExited | None = None
    failure: Failure | None = None

    @property
    def is_running(self) -> bool:
        return self.is_started and self.exit is None and not self.is_lost

    def note_report(self, report: Mapping[str, Any]) -> None:
        """What the task says of itself, as far as stopping it depends on it."""
        match report.get("type"):
            case "waiting_for_peers":
                self.waits_for_peers = True
            case "ready" | "progress" as kind:
                self.waits_for_peers = False
                self.has_trained |= kind == "progress"
            case "saves_on_sigterm":
                self.saves_on_sigterm = True

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
            running=ended is None and not self.is_lost,
            ok=ended is not None and ended.exit_code == 0,
            ended_by_us=ended is not None and ended.ended_by == "tfcluster",
            serves=self.serves,
            collateral=self.failure is not None and self.failure.is_collateral,
        )


class Gang:
    """All members of one attempt, in the plan's order."""

    def __init__(self, plan: Plan) -> None:
        self._members = {
            str(task.id): Member(task.id, task.node, task.serves, plan.hooks) for task in plan.tasks
        }
        self._settings = SettingsRead(plan.settings)
        self.failures: list[Failure] = []
        """In the order in which the ends arrived."""

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, task: str | None) -> Member | None:
        return self._members.get(task) if task else None

    @property
    def has_started(self) -> bool:
        return any(member.is_started for member in self)

    def running(self) -> list[Member]:
        return [member for member in self if member.is_running]

    def serving(self) -> list[Member]:
        """Those that never end by themselves and have not been told to."""
        return [member for member in self.running() if member.serves and not member.is_stopping]

    def ends(self) -> list[TaskEnd]:
        return [member.end() for member in self]

    def lose_node(self, node: str) -> None:
        for member in self:
            if member.node == node and member.exit is None:
                member.is_lost = True

    def note_report(self, member: Member, report: Mapping[str, Any]) -> None:
        """What a task says of itself."""
        member.note_report(report)
        self._settings.note(report)

    def unread_settings(self) -> str | None:
        """A warning, where tasks came far enough to have read what the spec sets."""
        came_far = any(member.has_trained or member.end().ok for member in self)
        return self._settings.warning() if came_far else None

    def note_exit(
        self,
        member: Member,
        event: TaskExited,
        *,
        error: Mapping[str, Any] | None,
        last_lines: str,
    ) -> None:
        """A task has ended; `error` is the exception it reported, if it did."""
        member.exit = event
        if event.exit_code == 0 or event.ended_by == "tfcluster":
            return
        member.failure = Failure(
            task=event.task,
            exit_code=event.exit_code,
            signal=event.signal,
            node=member.node,
            attempt=event.attempt,
            error=error,
            last_lines=last_lines,
            out_of_memory=event.out_of_memory,
        )
        self.failures.append(member.failure)

    def blame_the_late(self) -> None:
        """The others failed as a consequence and no cause came: whoever lives on is the cause."""
        self.failures += [
            Failure(str(m.id), None, None, node=m.node, observed=Kind.LATE, words=_LATE)
            for m in self.running()
        ]


@dataclass(frozen=True, slots=True)
class StopOrder:
    """Tasks of one node that are stopped alike."""

    node: str
    grace_s: float
    tasks: list[str]


def stops(members: Iterable[Member], grace_s: float | None, *, most_s: float) -> list[StopOrder]:
    """How to stop `members`: with `grace_s`, else each with as much of `most_s` as it can use."""
    groups: dict[tuple[str, float], list[str]] = {}
    for member in members:
        grace = member.stop_grace_s(most_s) if grace_s is None else grace_s
        groups.setdefault((member.node, grace), []).append(str(member.id))
    return [StopOrder(node, grace, tasks) for (node, grace), tasks in groups.items()]


def longest_grace_s(orders: Iterable[StopOrder]) -> float:
    """Seconds after which none of the stopped tasks runs any more."""
    return max((order.grace_s for order in orders), default=0.0)
