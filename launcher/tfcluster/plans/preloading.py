"""Preloading: the modules that one process per node imports, and the tasks that may fork from it.

A fork has the modules of the preloader. So the variables that are read at their import must be
the same for it, and its script must not set any of them before it imports the modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tfcluster.plans.job_facts import has_hooks, strategy_name
from tfcluster.plans.plan import Command, Plan, TaskPlan
from tfcluster.plans.script_analysis import UNKNOWN, Code

if TYPE_CHECKING:
    from tfcluster.plans.context import PlanContext
    from tfcluster.spec.model import ClusterSpec

_AFTER_IMPORT: Final = frozenset({
    "TF_CONFIG", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_GRPC_REUSE_PORT", "TF_GRPC_DEFAULT_OPTIONS",
    "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "CUDA_VISIBLE_DEVICES",
    "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
    "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "GRPC_FAIL_FAST", "GRPC_MAX_RETRIES",
    "TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES", "TF_COORDINATOR_IGNORE_TRANSIENT_TIMEOUTS",
    "TF_CUDNN_DETERMINISTIC", "TF_DETERMINISTIC_OPS", "TF_GPU_ALLOCATOR", "TF_GPU_THREAD_COUNT",
    "TF_GPU_THREAD_MODE", "TF_PSS_ENABLE_COORDINATION_SERVICE", "TF_XLA_FLAGS", "XLA_FLAGS",
})  # fmt: skip
"""Variables read after the import: when TensorFlow creates its devices, server or thread pools,
compiles, or sends. Each RPC reads GRPC_FAIL_FAST (tensorflow/core/distributed_runtime/rpc/
grpc_state.h); the driver reads CUDA_… when it is opened. OpenBLAS and OpenMP get their number of
threads again in the fork. A library that logs each `getenv` saw none of the others during the
imports of TensorFlow 2.15.1 and 2.21 (on a machine without a GPU)."""
_OPENMP_THREADS: Final = "OMP_NUM_THREADS"
"""GCC's OpenMP reads it at the import: a fork can change it for its main thread only."""
_BY_INTERPRETER: Final = "PYTHON"
"""The prefix of variables that Python reads when it starts: a script sets them for its children."""
_AT_IMPORT: Final = (
    "ABSL_", "ARROW_", "CUDA_", "GCS_", "GLIBC_", "GOMP_", "GRPC_", "HDF5_", "HOME", "JAX",
    "JE_ARROW_", "JOBLIB_", "KERAS_", "KMP_", "LANG", "LC_", "LD_", "LOKY_", "MALLOC_",
    "MATPLOTLIBRC", "MKL_", "MPL", "NPY_", "NUMEXPR_", "NUMPY_", "OMP_", "OPENBLAS_", "OPENCV_",
    "OPENSSL_", "PANDAS_", "PATH", "PILLOW_", "PROTOCOL_", _BY_INTERPRETER, "SCIPY_", "SKLEARN_",
    "TEMP", "TF", "TMP", "TZ", "WRAPT_", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
    "XLA_",
)  # fmt: skip
"""Prefixes of variables that the interpreter or a module may read only once, at the import.

TensorFlow and Keras also import pandas with Arrow, scikit-learn with OpenMP, OpenCV, Pillow,
Matplotlib and JAX, where these are installed. The library that logs each `getenv`, and
`os.environ` with its reads logged, showed what they read."""
_PARTS: Final = {"keras": "tensorflow:keras.Model", "estimator": "tensorflow:estimator.Estimator"}
"""Parts of TensorFlow that are loaded on first use (tensorflow/python/util/lazy_loader.py)."""
_LARGE_MODULES: Final = ("keras", "keras_tuner", "numpy", "tensorflow_datasets", "tf_keras")
"""Other modules worth preloading if the job imports them; none of them starts a thread.

Neither does JAX before its first computation."""


@dataclass(frozen=True, slots=True)
class PreloadPlan:
    """The preloader that a node's agent starts before its tasks."""

    command: Command
    tasks: frozenset[str]
    """The tasks that may fork from it."""


def is_read_at_import(name: str) -> bool:
    """Return whether the variable must have its value before the imports."""
    is_tfcluster = name.startswith("TFCLUSTER_")
    return not is_tfcluster and name not in _AFTER_IMPORT and name.startswith(_AT_IMPORT)


def modules(spec: ClusterSpec, code: Code | None) -> tuple[str, ...]:
    """Return the modules to preload, in the notation of `tfcluster_workers.preload.importer`."""
    if spec.runtime.preload == "off" or not has_hooks(spec) or code is None or obstacle(code):
        return ()
    tops = {name.partition(".")[0] for name in code.imports}
    large = tuple(name for name in _LARGE_MODULES if name in tops)
    if strategy_name(spec) == "jax" and tops & {"jax", "keras"}:
        return ("jax", *large)
    if "tensorflow" not in tops:
        return large if spec.runtime.preload == "on" else ()
    return ("tensorflow", *(_PARTS[part] for part in sorted(code.parts)), *large)


def obstacle(code: Code) -> str:
    """Return why the job's files rule out preloading, or an empty string."""
    if UNKNOWN in code.sets:
        return "the job sets environment variables whose names are computed"
    too_late = (name for name in code.sets if is_read_at_import(name))
    listed = ", ".join(sorted(name for name in too_late if not name.startswith(_BY_INTERPRETER)))
    return f"the job sets {listed} itself, too late for a preloaded module" if listed else ""


def explain_cold_starts(spec: ClusterSpec, plan: Plan, context: PlanContext) -> Iterator[str]:
    """Yield a sentence for each reason why tasks import modules that could be preloaded."""
    setting, head = spec.runtime.preload, "no preloading (runtime.preload)"
    if plan.preload:
        yield from _explain_cold_tasks(plan)
    elif setting != "off" and context.code is not None and (reason := obstacle(context.code)):
        is_worth_it = any(_is_worth_it(plan, node.name) for node in plan.nodes)
        if is_worth_it and (setting == "on" or {"tensorflow", "jax"} & {*plan.needs}):
            yield f"{head}: {reason}; set them in job.env instead, and not in the files"
    elif setting == "on" and not has_hooks(spec):
        yield f"{head}: it needs the hooks"
    elif setting == "on":
        yield f"{head}: the job's files import no module that can be preloaded"


def _explain_cold_tasks(plan: Plan) -> Iterator[str]:
    for node in plan.nodes:
        if (preload := preload_on(plan, node.name)) is None:
            continue
        for task in plan.tasks:
            if task.has_own_command:
                continue
            if task.node == node.name and str(task.id) not in preload.tasks:
                yield f"{task.id} is not preloaded: variables that are read at the import differ"


def preload_on(plan: Plan, node: str) -> PreloadPlan | None:
    """Return the preloader of `node`, or None if there is none or it would save nothing."""
    if not plan.preload or not _is_worth_it(plan, node):
        return None
    return _make_preload(_tasks_with_hooks(plan, node), plan.preload)


def _is_worth_it(plan: Plan, node: str) -> bool:
    """Return whether tasks of `node` would import the same more than once."""
    count = len(_tasks_with_hooks(plan, node))
    return count > 1 or (count == 1 and plan.supervision.max_restarts > 0)


def _tasks_with_hooks(plan: Plan, node: str) -> list[TaskPlan]:
    return [task for task in plan.tasks if task.node == node and not task.has_own_command]


def _make_preload(tasks: Sequence[TaskPlan], names: tuple[str, ...]) -> PreloadPlan:
    """Return the preloader for the largest group of tasks with the same variables at import."""
    groups: dict[frozenset[tuple[str, str]], list[TaskPlan]] = {}
    for task in tasks:
        groups.setdefault(_read_at_import(task.command), []).append(task)
    forks = max(groups.values(), key=len)
    command = forks[0].command
    later = _AFTER_IMPORT - {_OPENMP_THREADS}
    env = tuple(v for v in command.env if v.name not in later and not v.secret)
    return PreloadPlan(
        replace(command, argv=(*command.argv[:2], "preload", *names), env=env),
        frozenset(str(task.id) for task in forks),
    )


def _read_at_import(command: Command) -> frozenset[tuple[str, str]]:
    return frozenset((v.name, v.value) for v in command.env if is_read_at_import(v.name))
