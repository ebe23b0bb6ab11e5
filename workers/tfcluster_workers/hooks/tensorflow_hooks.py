"""Sees strategies and servers join their cluster, preemption handlers, and an Estimator's steps."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Callable

from tfcluster_workers import chaos, context, reporting
from tfcluster_workers.hooks import cluster_check, save_hooks


def watch_collective_strategy(module: ModuleType) -> None:
    """MultiWorkerMirroredStrategy joins in its constructor, and waits there for its peers."""
    _watch_joining(vars(module)["CollectiveAllReduceExtended"], _check_collective)


def _check_collective(*args: Any, cluster_resolver: Any = None, **kwargs: Any) -> None:
    """Called as `(strategy, cluster_resolver, communication_options, devices)`."""
    if not kwargs.get("devices") and not args[3:]:  # one of this process's own devices joins nobody
        cluster_check.check_strategy(args[1] if args[1:] else cluster_resolver)


def watch_parameter_server_strategy(module: ModuleType) -> None:
    """The chief's ParameterServerStrategy waits for every worker and ps in its constructor."""
    _watch_joining(vars(module)["ParameterServerStrategyV2"], _check_parameter_servers)


def _check_parameter_servers(*args: Any, cluster_resolver: Any = None, **_: Any) -> None:
    cluster_check.check_parameter_servers(args[0] if args else cluster_resolver)


def _watch_joining(joiner: Any, check: Callable[..., None]) -> None:
    construct = joiner.__init__

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        check(*args, **kwargs)
        reporting.waiting_for_peers()
        construct(self, *args, **kwargs)
        reporting.ready()

    joiner.__init__ = __init__


def watch_server(module: ModuleType) -> None:
    """A ps, or a worker of a parameter-server job, serves from `join` on, and waits for nobody.

    Its constructor says nothing: Estimator makes a server in workers that are yet to join, too.
    """
    server = vars(module)["Server"]
    construct, join = server.__init__, server.join

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        made = self.server_def
        cluster = vars(module)["ClusterSpec"](made.cluster).as_dict()
        cluster_check.note_server(_text(self.target), cluster, made.job_name, made.task_index)

    @functools.wraps(join)
    def join_and_report(self: Any) -> Any:
        chaos.at_join()
        cluster_check.use_server(_text(self.target))
        reporting.serving()
        return join(self)

    server.__init__, server.join = __init__, join_and_report


def watch_session(module: ModuleType) -> None:
    """A session at a server waits for the server's peers, without a word and for ever."""
    session = vars(module)["BaseSession"]
    construct = session.__init__

    @functools.wraps(construct)
    def __init__(self: Any, target: Any = "", *args: Any, **kwargs: Any) -> None:
        if target:
            cluster_check.use_server(_text(target))
        construct(self, target, *args, **kwargs)

    session.__init__ = __init__


def _text(target: Any) -> str:
    return target.decode() if isinstance(target, bytes) else str(target)


def watch_preemption(module: ModuleType) -> None:
    """A PreemptionCheckpointHandler saves on SIGTERM, so the task wants the whole grace time."""
    handler = vars(module)["PreemptionCheckpointHandler"]
    construct = handler.__init__

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        reporting.saves_on_sigterm()

    handler.__init__ = __init__
    _watch_preemption_save(handler)


def _watch_preemption_save(handler: Any) -> None:
    save = handler._save_checkpoint

    @functools.wraps(save)
    def save_and_report(self: Any, *args: Any, **kwargs: Any) -> Any:
        saved = save(self, *args, **kwargs)
        if self._is_chief:  # the others' folder is removed at once
            # A `save_fn` of the script's own may know of no manager.
            latest = getattr(self._write_checkpoint_manager, "latest_checkpoint", None)
            path = save_hooks.whole_path(str(latest)) if latest else "checkpoint"
            # What the hooks saw is not reported again. One run may do several steps: what the
            # script says of itself comes before the number of runs.
            known = reporting.seen_step(path), reporting.meter.last_step
            told = next((step for step in known if step is not None), None)
            reporting.saved(path, step=int(self.total_run_calls) if told is None else told)
        return saved

    handler._save_checkpoint = save_and_report


def watch_estimator(module: ModuleType) -> None:
    """`Estimator.train` gets one more hook; `train_and_evaluate` goes through it too."""
    estimator = vars(module)["Estimator"]
    train = estimator.train

    @functools.wraps(train)
    def train_and_report(self: Any, input_fn: Any, hooks: Any = None, *args: Any, **kw: Any) -> Any:
        from tfcluster_workers.hooks import estimator_hooks

        watched = [*(hooks or []), estimator_hooks.StepReporter()]
        return train(self, input_fn, watched, *args, **kw)

    estimator.train = train_and_report
    _watch_evaluation(estimator)


_is_exporting = False
"""`train_and_evaluate` exports after an evaluation: it is over when both are."""


def watch_evaluator(module: ModuleType) -> None:
    """The evaluator of `train_and_evaluate`: what it has evaluated, and exported, is reported."""
    evaluator = vars(module)["_TrainingExecutor"]._Evaluator
    evaluate = evaluator.evaluate_and_export

    @functools.wraps(evaluate)
    def evaluate_and_report(self: Any) -> Any:
        global _is_exporting
        _is_exporting = True
        try:
            found = evaluate(self)
        finally:
            _is_exporting = False
        _report_evaluation(found[0].metrics)
        return found

    evaluator.evaluate_and_export = evaluate_and_report


def _report_evaluation(results: Any) -> None:
    if results and context.is_evaluator():
        step = results.get("global_step")
        reporting.evaluated(None if step is None else int(step))


def _watch_evaluation(estimator: Any) -> None:
    evaluate = estimator.evaluate

    @functools.wraps(evaluate)
    def evaluate_and_report(
        self: Any, input_fn: Any, steps: Any = None, hooks: Any = None, *args: Any, **kw: Any
    ) -> Any:
        from tfcluster_workers.hooks import estimator_hooks

        watched = [*(hooks or []), estimator_hooks.SignOfLife()]
        results = evaluate(self, input_fn, steps, watched, *args, **kw)
        if not _is_exporting:
            _report_evaluation(results)
        return results

    estimator.evaluate = evaluate_and_report
