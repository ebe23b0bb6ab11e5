"""The border of the tasks' reports, limits on their number, and the last lines of tasks' logs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tfcluster.agent import budgets
from tfcluster.agent import catalogue as msg
from tfcluster.agent.message_fields import parse, replace
from tfcluster.rundir import chaos
from tfcluster.rundir.chaos import Fault
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.supervision.gang import Gang
from tfcluster.supervision.member import Member

_TAIL_BYTES = 64 * 1024


class ReportFilter:
    """The limits on a run's notes and trials; `tell` gets a sentence when some are left out.

    Of each node one task may report GPUs that it does not use.
    """

    def __init__(
        self, state: RunSnapshot, faults: Sequence[Fault], tell: Callable[[str], None]
    ) -> None:
        self._state, self._faults, self._tell = state, faults, tell
        self._notes: Counter[tuple[str, int]] = Counter()
        self._trials: set[str] = set()
        self._has_warned = False
        self._with_unused_gpus: set[str] = set()
        """Nodes with GPUs that their tasks do not use."""

    def take(self, message: msg.TaskEvent) -> msg.TaskReport | None:
        """Return the report in a message, with its task and attempt; None if it is invalid or left
        out.

        Anything that runs in a task can send it. The chief may inject a fault into another task,
        which its report names.
        """
        task, attempt = message.task, message.attempt
        try:
            report = parse(message.event, msg.TaskReport)
        except ValueError:
            return None
        match report:
            case msg.ChaosInjected(fault=fault):
                is_kept = self._is_ordered(fault, task, attempt)
            case msg.Note():
                is_kept = self._has_room_for_note(task, attempt)
            case msg.UnusedGpus():
                is_kept = self._is_first_of_node(task)
            case msg.Trial(id=trial) | msg.TrialEnded(id=trial):
                is_kept = self._has_room_for_trial(trial)
            case _:
                is_kept = True
        if report is None or not is_kept:
            return None
        is_of_other = isinstance(report, msg.ChaosInjected) and report.task
        return replace(report, task=report.task if is_of_other else task, attempt=attempt)

    def _is_ordered(self, text: str, task: str, attempt: int) -> bool:
        """Return whether the task was to inject this fault, and has not reported it yet."""
        fault = chaos.injected(self._faults, text, by=task, attempt=attempt)
        return fault is not None and all(entry["fault"] != text for entry in self._state.chaos)

    def _has_room_for_note(self, task: str, attempt: int) -> bool:
        self._notes[task, attempt] += 1
        if self._notes[task, attempt] == budgets.NOTES + 1:
            self._tell(f"{task} has sent more than {budgets.NOTES} notes: the rest is left out")
        return self._notes[task, attempt] <= budgets.NOTES

    def _is_first_of_node(self, task: str) -> bool:
        """Return whether no task of this task's node has reported unused GPUs before."""
        node, before = self._state.task(task).node, len(self._with_unused_gpus)
        self._with_unused_gpus.add(node)
        return len(self._with_unused_gpus) > before

    def _has_room_for_trial(self, trial: str) -> bool:
        if trial in self._trials:
            return True
        if len(self._trials) < budgets.TRIALS:
            self._trials.add(trial)
            return True
        if not self._has_warned:
            self._has_warned = True
            limit = f"{budgets.TRIALS:,}"
            self._tell(f"the search has more than {limit} trials: its own folder lists the rest")
        return False


def last_text(log: Path) -> str:
    """Return the last 64 KiB of a log; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""


def last_line(paths: RunPaths, member: Member) -> str:
    """Return the last non-empty line of a member's log; of a progress bar its latest state."""
    text = last_text(paths.task_log(member.id, member.attempt))
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines()]
    return next((line for line in reversed(lines) if line), "")


def last_output(paths: RunPaths, gang: Gang, now: float) -> float:
    """Return when a running task last wrote to its log, on the clock that shows `now`; or 0."""
    newest = 0.0
    for member in gang.running():
        try:
            newest = max(newest, paths.task_log(member.id, member.attempt).stat().st_mtime)
        except OSError:
            continue
    return now - max(0.0, time.time() - newest) if newest else 0.0
