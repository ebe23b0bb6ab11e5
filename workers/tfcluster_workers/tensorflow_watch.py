"""Sees a strategy join its cluster, a preemption handler and an Estimator's steps go by."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from tfcluster_workers import reporting


def watch_collective_strategy(module: ModuleType) -> None:
    """MultiWorkerMirroredStrategy joins in its constructor, and waits there for its peers."""
    extended = vars(module)["CollectiveAllReduceExtended"]
    construct = extended.__init__

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        reporting.waiting_for_peers()
        construct(self, *args, **kwargs)
        reporting.ready()

    extended.__init__ = __init__


def watch_preemption(module: ModuleType) -> None:
    """A PreemptionCheckpointHandler saves on SIGTERM, so the task wants the whole grace time."""
    handler = vars(module)["PreemptionCheckpointHandler"]
    construct = handler.__init__

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        reporting.saves_on_sigterm()

    handler.__init__ = __init__


def watch_estimator(module: ModuleType) -> None:
    """`Estimator.train` gets one more hook; `train_and_evaluate` goes through it too."""
    estimator = vars(module)["Estimator"]
    train = estimator.train

    @functools.wraps(train)
    def train_and_report(self: Any, input_fn: Any, hooks: Any = None, *args: Any, **kw: Any) -> Any:
        from tfcluster_workers import estimator_hook

        watched = [*(hooks or []), estimator_hook.StepReporter()]
        return train(self, input_fn, watched, *args, **kw)

    estimator.train = train_and_report
