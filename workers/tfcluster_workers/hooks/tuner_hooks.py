"""Hooks into KerasTuner: reports the trials of a search, its end, and a search without results.

They also write the search's state files atomically, so that a killed search can continue.

The oracle has the state: in the chief's process if there is a chief, else in the only tuner's.
Tested with KerasTuner 1.4.7 and 1.4.8; a release with other names is not watched.
"""

from __future__ import annotations

import functools
import os
import time
from types import ModuleType, SimpleNamespace
from typing import Any, Callable

from tfcluster_workers import reporting
from tfcluster_workers.hooks.replacing import replaces

MAX_SLEEP_S = 1.0
"""The longest sleep of KerasTuner's chief, which checks every 20 s whether all tuners have left."""
IDLE_S = 0.5
"""Seconds that a tuner sleeps before it asks an oracle without a trial (Hyperband) again."""

_oracle_errors: list[BaseException] = []
"""Errors that the chief's oracle raised while it answered a tuner."""


def watch_search(module: ModuleType) -> None:
    """Watch `BaseTuner.search`, which returns in the chief and in a tuner without a chief."""

    @replaces(vars(module)["BaseTuner"], "search")
    def search(stock: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        results = stock(self, *args, **kwargs)
        reporting.doubt_over("fit")  # the search goes on after a trial that failed
        reason = failure(self.oracle)
        if reason is not None:
            reporting.failed_search(reason)
        reporting.search_ended()
        return results


def watch_oracle(module: ModuleType) -> None:
    """Report each trial that the oracle hands out, and its result."""
    oracle = vars(module)["Oracle"]

    def created(self: Any, trial: Any, tuner_id: str = "", **_: Any) -> None:
        if str(trial.status) == "RUNNING":
            _report_trial(self, trial, tuner=str(tuner_id))

    def ended(self: Any, trial: Any = None, status: str = "", trial_id: str = "") -> None:
        name = trial_id or (trial if isinstance(trial, str) else trial.trial_id)
        _report_trial(self, self.trials[name])

    _after(oracle, "create_trial", created)
    _after(oracle, "end_trial", lambda self, result, *args, **kw: ended(self, *args, **kw))


def watch_client(module: ModuleType) -> None:
    """Watch a tuner that asks its chief: it waits for the chief, then for each next trial."""
    client = vars(module)["OracleClient"]
    announce = functools.cache(reporting.waiting_for_peers)  # only before the first answer

    @replaces(client, "create_trial")
    def create_trial(stock: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        announce()
        trial = stock(self, *args, **kwargs)
        reporting.ready()
        if str(trial.status) == "IDLE":
            time.sleep(IDLE_S)
        return trial

    @replaces(client, "end_trial")
    def end_trial(stock: Any, self: Any, trial: Any, *args: Any, **kwargs: Any) -> Any:
        # The message of a trial is not sent to the chief (Trial.to_proto).
        message = getattr(trial, "message", None)
        result = stock(self, trial, *args, **kwargs)
        reporting.trial_ended(str(trial.trial_id), message=message and str(message))
        return result


def watch_chief(module: ModuleType) -> None:
    """Watch the chief's server: report that it serves, and end it if its oracle has failed.

    An oracle that raises while it answers (too many failed trials in a row) keeps its lock, so the
    chief would serve forever. Without a chief the same error ends `search`, so it does here too.
    """

    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, MAX_SLEEP_S))
        if _oracle_errors:
            raise _oracle_errors[0]

    @replaces(module, "start_server")
    def start_server(stock: Any, *args: Any, **kwargs: Any) -> Any:
        reporting.ready()
        return stock(*args, **kwargs)

    module.time = SimpleNamespace(sleep=sleep)  # type: ignore[attr-defined]


def watch_state(module: ModuleType) -> None:
    """Have the state of a search (oracle, tuners, trials) written atomically.

    KerasTuner empties the file first and then writes it (utils.py, `save_json`): after a chief was
    killed in between, the next attempt would fail with "Expecting value: line 1 column 1".
    """

    @replaces(module, "save_json")
    def save_atomically(stock: Any, path: Any, obj: Any) -> Any:
        if "://" in str(path):
            return stock(path, obj)  # object stores write atomically
        partial = f"{path}.{os.getpid()}.partial"
        text = stock(partial, obj)
        os.replace(partial, path)
        return text


def _after(owner: Any, name: str, report: Callable[..., None]) -> None:
    """Call `report(self, result, …)` after `owner.name`, ignoring errors of `report`."""
    original = getattr(owner, name)
    if getattr(original, "is_watched", False):
        return

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            _oracle_errors.append(error)
            _safely(report, self, None, *args, **kwargs)
            raise
        _safely(report, self, result, *args, **kwargs)
        return result

    watched.__name__ = original.__name__
    watched.is_watched = True  # type: ignore[attr-defined]
    setattr(owner, name, watched)


def _safely(report: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    try:
        report(*args, **kwargs)
    except Exception:
        return  # an unknown release of KerasTuner


def _report_trial(oracle: Any, trial: Any, *, tuner: str | None = None) -> None:
    objective, score = oracle.objective, trial.score
    reporting.trial(
        str(trial.trial_id),
        status=str(trial.status),
        tuner=tuner,
        score=None if score is None else float(score),
        best_step=int(trial.best_step or 0),
        objective=str(objective.name),
        direction=str(objective.direction),
        values=dict(trial.hyperparameters.values),
        message=trial.message and str(trial.message),
    )


def failure(oracle: Any) -> str | None:
    """Return why the search has failed; None if it has not, or only the chief's oracle knows."""
    try:
        trials = list(vars(oracle).get("trials", {}).values())
        if not trials or any(str(trial.status) == "COMPLETED" for trial in trials):
            return None
        messages = [str(trial.message).strip() for trial in trials if trial.message]
    except Exception:
        return None  # an unknown release of KerasTuner
    subject = "the only trial" if len(trials) == 1 else f"all {len(trials)} trials"
    reason = f"; the last one with {messages[-1].splitlines()[-1][:300]}" if messages else ""
    return f"{subject} of the search failed{reason}"
