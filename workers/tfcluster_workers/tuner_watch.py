"""Sees a KerasTuner search end in which no trial succeeded: KerasTuner itself exits with 0 then."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from tfcluster_workers import reporting


def watch_search(module: ModuleType) -> None:
    """`BaseTuner.search` returns in the tuner that is alone, and in the chief when all is done."""
    tuner = vars(module)["BaseTuner"]
    search = tuner.search
    if hasattr(search, "__wrapped__"):
        return  # KerasTuner shows one class under two module names

    @functools.wraps(search)
    def search_and_judge(self: Any, *args: Any, **kwargs: Any) -> Any:
        results = search(self, *args, **kwargs)
        reason = failure(self.oracle)
        if reason is not None:
            reporting.failed_search(reason)
        return results

    tuner.search = search_and_judge


def failure(oracle: Any) -> str | None:
    """Why the search has failed; None where it has not, or only the chief's oracle can tell."""
    try:
        trials = list(vars(oracle).get("trials", {}).values())
        if not trials or any(str(trial.status) == "COMPLETED" for trial in trials):
            return None
        said = [str(trial.message).strip() for trial in trials if trial.message]
    except Exception:
        return None  # another KerasTuner than we know
    which = "the only trial" if len(trials) == 1 else f"all {len(trials)} trials"
    why = f"; the last one with {said[-1].splitlines()[-1][:300]}" if said else ""
    return f"{which} of the search failed{why}"
