"""Facts of a spec's job that follow from several of its fields: strategy, hooks, data folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tfcluster.plans.command import FUNCTION_MODULE, programs
from tfcluster.plans.context import LOCAL
from tfcluster.spec import COORDINATED

if TYPE_CHECKING:
    from tfcluster.plans.context import PlanContext
    from tfcluster.spec.model import ClusterSpec

_TENSORFLOW: Final = frozenset({"tensorflow", "tf_keras", "tensorflow_datasets"})


def strategy_name(spec: ClusterSpec) -> str:
    """Return the spec's strategy, or the default for the cluster's jobs."""
    return spec.strategy.name or default_strategy(spec)


def default_strategy(spec: ClusterSpec) -> str:
    """Return the strategy of a spec that names none."""
    if spec.job.kind == "tuner":
        return "default"  # every tuner trains its trials alone
    return "parameter_server" if spec.cluster.get("ps") else "multi_worker_mirrored"


def with_found_strategy(spec: ClusterSpec, context: PlanContext) -> ClusterSpec:
    """Return `spec` with the strategy of another library than tf.distribute, if that is certain.

    Keras on JAX or torch cannot use tf.distribute; neither can a job that imports only one of these
    libraries, and no TensorFlow.
    """
    if spec.strategy.name or spec.job.kind != "training" or "ps" in spec.cluster:
        return spec
    packages = context.packages
    name = next((n for n in ("jax", "torch") if packages & {*COORDINATED, *_TENSORFLOW} == {n}), "")
    if "keras" in packages:
        name = _keras_backend(spec, context)
    elif context.code is not None and context.code.has_dtensor and "tensorflow" in packages:
        name = "dtensor"
    if name not in COORDINATED:
        return spec
    strategy = spec.strategy.model_copy(update={"name": name})
    return spec.model_copy(update={"strategy": strategy})


def _keras_backend(spec: ClusterSpec, context: PlanContext) -> str:
    """Return the backend of Keras that the script, the spec or this shell chooses, or "".

    Without a choice Keras needs TensorFlow, its default: where that is not installed, the one of
    the others that is.
    """
    code, name = context.code, "KERAS_BACKEND"
    is_here = all(task.node == LOCAL for task in context.tasks)
    inherited = context.environ.get(name) if is_here or name in spec.job.env else None
    chosen = spec.job.env.get(name) or dict(context.env_file).get(name) or inherited
    assigned, default = (code.keras_backend, code.default_keras_backend) if code else ("", "")
    return assigned or chosen or default or _only_backend(context)


def _only_backend(context: PlanContext) -> str:
    """Return the only backend of Keras that the tasks' Pythons have, if it is JAX or torch."""
    installed = [
        {name for name in ("tensorflow", "jax", "torch") if name in python.packages}
        for python in context.interpreters.values()
    ]
    backend = set().union(*installed)
    return backend.pop() if len(backend) == 1 and backend <= {"jax", "torch"} else ""


def runs_python(spec: ClusterSpec) -> bool:
    """Return whether a task runs a script or a module, and not a command."""
    has_servers = "data_worker" in spec.cluster
    return has_servers or any(program.has_hooks for program in programs(spec.job))


def has_hooks(spec: ClusterSpec) -> bool:
    """Return whether tasks start through `tfcluster_workers.boot`, except those with a command."""
    return spec.job.hooks == "auto" and runs_python(spec)


def needed_packages(spec: ClusterSpec, context: PlanContext) -> tuple[str, ...]:
    """Return the libraries that the job imports for certain; a valid job may import none."""
    if not runs_python(spec):
        return ()
    modules = {program.module or "" for program in programs(spec.job)} - {FUNCTION_MODULE}
    is_example = any(module.startswith("tfcluster_workers.") for module in modules)
    needed, strategy = [], strategy_name(spec)
    if strategy in ("jax", "torch"):
        has_keras = is_example or "keras" in context.packages
        needed += [strategy, "keras"] if has_keras else [strategy]
    elif is_example:
        needed.append("tensorflow")
    if "data_worker" in spec.cluster or context.packages & _TENSORFLOW:
        needed.append("tensorflow")
    return tuple(dict.fromkeys(needed))


def find_data_dir(spec: ClusterSpec, host: str) -> tuple[str, str] | None:
    """Return the data folder for tasks of `host` and the field that sets it, or None."""
    folder, field = spec.runtime.of_host(host, "data_dir")
    return (folder, ".".join(field)) if folder is not None else None
