"""Sees what becomes of a KerasTuner search: its trials, its end, and that it found nothing.

Its state files are written whole, so that a killed search can go on.

The oracle keeps the books: in the chief's process where there is one, else in the only tuner's.
Measured with KerasTuner 1.4.7 and 1.4.8; a release with other names goes unwatched.
"""

from __future__ import annotations

import functools
import os
import time
from types import ModuleType, SimpleNamespace
from typing import Any, Callable

from tfcluster_workers import reporting

LONGEST_NAP_S = 1.0
"""KerasTuner's chief looks every 20 s whether all tuners have left; it may as well look sooner."""
IDLE_S = 0.5
"""A tuner whose oracle has nothing for it yet (Hyperband) asks again at once, without end."""

_given_up: list[BaseException] = []
"""What the chief's oracle raised while it answered a tuner."""


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
        reporting.search_ended()
        return results

    tuner.search = search_and_judge


def watch_oracle(module: ModuleType) -> None:
    """Tell of each trial that the oracle hands out, and of how it ended."""
    oracle = vars(module)["Oracle"]

    def created(self: Any, trial: Any, tuner_id: str = "", **_: Any) -> None:
        if str(trial.status) == "RUNNING":
            _tell(self, trial, tuner=str(tuner_id))

    def ended(self: Any, trial: Any = None, status: str = "", trial_id: str = "") -> None:
        name = trial_id or (trial if isinstance(trial, str) else trial.trial_id)
        _tell(self, self.trials[name])

    _after(oracle, "create_trial", created)
    _after(oracle, "end_trial", lambda self, result, *args, **kw: ended(self, *args, **kw))


def watch_client(module: ModuleType) -> None:
    """A tuner that asks its chief: it waits for him first, and later for its next trial."""
    client = vars(module)["OracleClient"]
    create, end = client.create_trial, client.end_trial
    if hasattr(create, "__wrapped__"):
        return

    announce = functools.cache(reporting.waiting_for_peers)  # once: then it has met its chief

    @functools.wraps(create)
    def create_trial(self: Any, *args: Any, **kwargs: Any) -> Any:
        announce()
        trial = create(self, *args, **kwargs)
        reporting.ready()
        if str(trial.status) == "IDLE":
            time.sleep(IDLE_S)
        return trial

    @functools.wraps(end)
    def end_trial(self: Any, trial: Any, *args: Any, **kwargs: Any) -> Any:
        # The message stays here: it is no part of what is sent to the chief (Trial.to_proto).
        message = getattr(trial, "message", None)
        result = end(self, trial, *args, **kwargs)
        reporting.trial_ended(str(trial.trial_id), message=message and str(message))
        return result

    client.create_trial, client.end_trial = create_trial, end_trial


def watch_chief(module: ModuleType) -> None:
    """The chief's server: it has joined once it serves, and it leaves when it can serve no more.

    An oracle that raises while it answers (too many failed trials in a row) keeps its lock, so the
    chief would serve for ever; without a chief the same error ends `search`, and so it does here.
    """
    start_server = module.start_server
    if hasattr(start_server, "__wrapped__"):
        return

    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, LONGEST_NAP_S))
        if _given_up:
            raise _given_up[0]

    @functools.wraps(start_server)
    def serve(*args: Any, **kwargs: Any) -> Any:
        reporting.ready()
        return start_server(*args, **kwargs)

    module.time = SimpleNamespace(sleep=sleep)  # type: ignore[attr-defined]
    module.start_server = serve  # type: ignore[attr-defined]


def watch_state(module: ModuleType) -> None:
    """Write the state of a search (oracle, tuners, trials) beside its place, then move it there.

    KerasTuner empties the file first and then writes (utils.py, `save_json`): the next attempt of
    a chief that was killed in between would end at "Expecting value: line 1 column 1".
    """
    save_json = module.save_json
    if hasattr(save_json, "__wrapped__"):
        return

    @functools.wraps(save_json)
    def save_whole(path: Any, obj: Any) -> Any:
        if "://" in str(path):
            return save_json(path, obj)  # an object store's: there whole or not at all
        partial = f"{path}.{os.getpid()}.partial"
        text = save_json(partial, obj)
        os.replace(partial, path)
        return text

    module.save_json = save_whole  # type: ignore[attr-defined]


def _after(owner: Any, name: str, tell: Callable[..., None]) -> None:
    """Call `tell(self, result, …)` after `owner.name`; its faults are nobody's."""
    original = getattr(owner, name)
    if getattr(original, "is_watched", False):
        return

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            _given_up.append(error)
            _safely(tell, self, None, *args, **kwargs)
            raise
        _safely(tell, self, result, *args, **kwargs)
        return result

    watched.__name__ = original.__name__
    watched.is_watched = True  # type: ignore[attr-defined]
    setattr(owner, name, watched)


def _safely(tell: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    try:
        tell(*args, **kwargs)
    except Exception:
        return  # another KerasTuner than we know


def _tell(oracle: Any, trial: Any, *, tuner: str | None = None) -> None:
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
