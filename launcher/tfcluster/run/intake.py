"""What counts of all that the tasks report: well formed, asked for, and not too much of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfcluster.agent import budgets
from tfcluster.run import chaos, report_checks
from tfcluster.run.chaos import Fault
from tfcluster.run.snapshot import RunSnapshot


class Intake:
    """Of one run; `tell` gets a sentence for the user where something is left out."""

    def __init__(
        self, state: RunSnapshot, faults: Sequence[Fault], tell: Callable[[str], None]
    ) -> None:
        self._state, self._faults, self._tell = state, faults, tell
        self._notes: Counter[tuple[str, int]] = Counter()
        self._trials: set[str] = set()
        self._is_told = False

    def take(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what counts of the report in a ``task_event``; None for one that does not."""
        report = report_checks.cleaned(message["event"])
        if report is None:
            return None
        task, attempt = message["task"], message["attempt"]
        match report["type"]:
            case "chaos":
                is_wanted = self._was_ordered(report["fault"], task, attempt)
            case "note":
                is_wanted = self._has_room_for_note(task, attempt)
            case "trial" | "trial_ended":
                is_wanted = self._has_room_for_trial(report["id"])
            case _:
                is_wanted = True
        return report if is_wanted else None

    def _was_ordered(self, text: str, task: str, attempt: int) -> bool:
        """Whether the task was told to inject this fault, and has not done it yet."""
        fault = chaos.injected(self._faults, text, by=task, attempt=attempt)
        return fault is not None and all(one["fault"] != text for one in self._state.chaos)

    def _has_room_for_note(self, task: str, attempt: int) -> bool:
        self._notes[task, attempt] += 1
        if self._notes[task, attempt] == budgets.NOTES + 1:
            self._tell(f"{task} has sent more than {budgets.NOTES} notes: the others are left out")
        return self._notes[task, attempt] <= budgets.NOTES

    def _has_room_for_trial(self, trial: str) -> bool:
        if trial in self._trials:
            return True
        if len(self._trials) < budgets.TRIALS:
            self._trials.add(trial)
            return True
        if not self._is_told:
            self._is_told = True
            most = f"{budgets.TRIALS:,}"
            self._tell(f"the search has more than {most} trials: its own folder lists the others")
        return False
