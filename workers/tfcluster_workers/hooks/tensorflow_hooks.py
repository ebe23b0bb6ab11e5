"""Hooks into TensorFlow: they report devices, joins of a cluster, preemption, Estimator's steps.

They also end a task that would train on the CPU although the plan gives it GPUs.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable

from tfcluster_workers import chaos, context, reporting
from tfcluster_workers.hooks import (
    cluster_check,
    devices,
    first_contact,
    save_hooks,
    stop_saves,
    training_facts,
    weights,
)
from tfcluster_workers.hooks.replacing import replaces


def watch_collective_strategy(module: ModuleType) -> None:
    """Watch MultiWorkerMirroredStrategy, which joins and waits for its peers in its constructor."""
    _watch_joining(vars(module)["CollectiveAllReduceExtended"], _check_collective)


def _check_collective(*args: Any, cluster_resolver: Any = None, **kwargs: Any) -> None:
    """Check the arguments `(strategy, cluster_resolver, communication_options, devices)`."""
    if not kwargs.get("devices") and not args[3:]:  # with devices it is local and joins no cluster
        cluster_check.check_strategy(args[1] if args[1:] else cluster_resolver)


def watch_parameter_server_strategy(module: ModuleType) -> None:
    """Watch ParameterServerStrategy, which waits for all workers and ps in its constructor."""
    _watch_joining(vars(module)["ParameterServerStrategyV2"], _check_parameter_servers)


def _check_parameter_servers(*args: Any, cluster_resolver: Any = None, **_: Any) -> None:
    cluster_check.check_parameter_servers(args[0] if args else cluster_resolver)


def _watch_joining(joiner: Any, check: Callable[..., None]) -> None:
    @replaces(joiner, "__init__")
    def construct(stock: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        check(*args, **kwargs)
        devices.require_gpus()
        reporting.waiting_for_peers()
        stock(self, *args, **kwargs)
        reporting.ready()


def watch_contacts(module: ModuleType) -> None:
    """Watch the calls by which a context, which has its devices by then, meets other tasks.

    ``TFE_EnableCollectiveOps`` meets the collectives' leader. The others are those of a coordinator
    (eager/context.py).
    """
    meetings = {
        "TFE_EnableCollectiveOps": first_contact.await_leader,
        "TFE_ContextSetServerDef": first_contact.await_others,
        "TFE_ContextSetServerDefWithTimeoutAndRetries": first_contact.await_others,
    }
    calls = vars(module)["pywrap_tfe"]
    for name, meet in meetings.items():
        if hasattr(calls, name):
            _meet_first(calls, name, meet)


def _meet_first(calls: Any, name: str, meet: Callable[..., None]) -> None:
    @replaces(calls, name)
    def call(stock: Any, *args: Any, **kwargs: Any) -> Any:
        from tensorflow.core.protobuf import tensorflow_server_pb2

        try:
            (given,) = (each for each in args if isinstance(each, bytes))
            server = tensorflow_server_pb2.ServerDef.FromString(given)
            cluster = {job.name: dict(job.tasks) for job in server.cluster.job}
            if sum(map(len, cluster.values())) > 1:
                reporting.meets_peers()
            meet(cluster, server.job_name, server.task_index)
        except Exception as error:  # TensorFlow meets them without us, too
            reporting.note(f"tfcluster could not wait for the other tasks: {error!r}")
        return stock(*args, **kwargs)


def watch_devices(module: ModuleType) -> None:
    """Report the devices when the context has initialised them, at the first operation."""

    @replaces(vars(module)["pywrap_tfe"], "TFE_NewContext")
    def new_context(stock: Any, *args: Any, **kwargs: Any) -> Any:
        made = stock(*args, **kwargs)
        devices.report()
        return made


def watch_gradients(module: ModuleType) -> None:
    """Watch GradientTape: whatever else a script does, it trains when it computes a gradient."""

    @replaces(vars(module)["GradientTape"], "gradient")
    def gradient(
        stock: Any, self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any
    ) -> Any:
        devices.require_gpus()
        found = stock(self, target, sources, *args, **kwargs)
        training_facts.note_gradient()
        weights.note(sources)
        return found


def watch_server(module: ModuleType) -> None:
    """Watch `tf.distribute.Server`: a ps, or a worker of a parameter-server job, serves in `join`.

    Its constructor means nothing: Estimator also makes a server in workers that are yet to join.
    """
    server = vars(module)["Server"]

    @replaces(server, "__init__")
    def construct(stock: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        server_def = self.server_def
        cluster = vars(module)["ClusterSpec"](server_def.cluster).as_dict()
        cluster_check.note_server(
            _text(self.target), cluster, server_def.job_name, server_def.task_index
        )

    @replaces(server, "join")
    def join(stock: Any, self: Any) -> Any:
        chaos.at_join()
        cluster_check.check_server(_text(self.target))
        if context.current().cluster.get("ps"):  # else a child of the task has its own cluster
            reporting.claim()
        devices.require_gpus()
        devices.report()
        reporting.serving()
        return stock(self)


def watch_session(module: ModuleType) -> None:
    """Watch sessions, which initialise devices; one at a server waits for its peers, silently."""

    @replaces(vars(module)["BaseSession"], "__init__")
    def construct(stock: Any, self: Any, target: Any = "", *args: Any, **kwargs: Any) -> None:
        if target:
            cluster_check.check_server(_text(target))
        stock(self, target, *args, **kwargs)
        devices.report()


def _text(target: Any) -> str:
    return target.decode() if isinstance(target, bytes) else str(target)


def watch_preemption(module: ModuleType) -> None:
    """Watch a script's PreemptionCheckpointHandler: a task that saves needs the whole grace time.

    That of `stop_saves` reports by itself.
    """
    handler = vars(module)["PreemptionCheckpointHandler"]

    @replaces(handler, "__init__")
    def construct(stock: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        if not stop_saves.is_of_fit(self):
            stop_saves.note_own_handler()
            reporting.saves_on_sigterm()

    @replaces(handler, "_save_checkpoint")
    def save(stock: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        saved = stock(self, *args, **kwargs)
        # The others' folders are removed at once; a backup has been reported.
        if self._is_chief and not stop_saves.is_of_fit(self):
            # A script's own `save_fn` may use no manager.
            latest = getattr(self._write_checkpoint_manager, "latest_checkpoint", None)
            path = save_hooks.absolute_path(str(latest)) if latest else "checkpoint"
            # A step that the hooks have seen is not reported again. One run may do several steps,
            # so a step that the script has reported is better than the number of runs.
            known = reporting.seen_step(path), reporting.meter.last_step
            step = next((step for step in known if step is not None), None)
            reporting.saved(path, step=int(self.total_run_calls) if step is None else step)
        return saved


def watch_estimator(module: ModuleType) -> None:
    """Add a hook to `Estimator.train`, which `train_and_evaluate` calls too."""
    estimator = vars(module)["Estimator"]

    @replaces(estimator, "train")
    def train(
        stock: Any,
        self: Any,
        input_fn: Any,
        hooks: Any = None,
        steps: Any = None,
        max_steps: Any = None,
        *args: Any,
        **kw: Any,
    ) -> Any:
        from tfcluster_workers.hooks import estimator_hooks

        devices.require_gpus()
        reporter = estimator_hooks.StepReporter(steps=steps, max_steps=max_steps)
        return stock(self, input_fn, [*(hooks or []), reporter], steps, max_steps, *args, **kw)

    _watch_evaluation(estimator)


_is_exporting = False
"""True while `train_and_evaluate` evaluates and exports; it is reported after both."""


def watch_evaluator(module: ModuleType) -> None:
    """Report each evaluation of `train_and_evaluate`'s evaluator after its export."""

    @replaces(vars(module)["_TrainingExecutor"]._Evaluator, "evaluate_and_export")
    def evaluate_and_export(stock: Any, self: Any) -> Any:
        global _is_exporting
        _is_exporting = True
        try:
            result = stock(self)
        finally:
            _is_exporting = False
        _report_evaluation(result[0].metrics)
        return result


def _report_evaluation(results: Any) -> None:
    if results and context.is_evaluator():
        step = results.get("global_step")
        reporting.evaluated(None if step is None else int(step))


def _watch_evaluation(estimator: Any) -> None:
    @replaces(estimator, "evaluate")
    def evaluate(
        stock: Any,
        self: Any,
        input_fn: Any,
        steps: Any = None,
        hooks: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        from tfcluster_workers.hooks import estimator_hooks

        devices.require_gpus()
        watched = [*(hooks or []), estimator_hooks.SignOfLife()]
        results = stock(self, input_fn, steps, watched, *args, **kwargs)
        if not _is_exporting:
            _report_evaluation(results)
        return results
