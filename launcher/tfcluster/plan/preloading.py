"""What one process of a node imports once for all its tasks, and which of them may be its forks.

A fork has the preloader's modules. So it must want what was read at their import to be the same:
the variables below, and nothing that its script would have changed before it imports them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tfcluster.plan.imports import UNKNOWN, Code
from tfcluster.plan.keras_settings import has_hooks
from tfcluster.plan.placement import DOCKER
from tfcluster.plan.plan import Command, EnvVar, Plan, TaskPlan

if TYPE_CHECKING:
    from tfcluster.plan.context import PlanContext
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
"""Read when TensorFlow makes its devices, its server or its thread pools, compiles, or sends: each
RPC asks for GRPC_FAIL_FAST (tensorflow/core/distributed_runtime/rpc/grpc_state.h), the driver for
CUDA_… when it is opened. OpenBLAS is told anew. A library that logs each `getenv` saw none of them
during the imports of TensorFlow 2.15.1 and 2.21 (on a machine without a GPU)."""
_BY_INTERPRETER: Final = "PYTHON"
"""How the names begin that Python reads when it starts: a script sets them for its children."""
_AT_IMPORT: Final = (
    "ABSL_", "CUDA_", "GLIBC_", "GRPC_", "HDF5_", "HOME", "JAX_", "KERAS_", "KMP_", "LANG",
    "LC_", "LD_", "MALLOC_", "MKL_", "NPY_", "NUMPY_", "OMP_", "OPENBLAS_", "PATH",
    "PROTOCOL_", _BY_INTERPRETER, "SCIPY_", "TF", "TMPDIR", "TZ", "WRAPT_", "XLA_",
)  # fmt: skip
"""How the names of variables begin that the interpreter or a module may read once and for all."""
_PARTS: Final = {"keras": "tensorflow:keras.Model", "estimator": "tensorflow:estimator.Estimator"}
"""Of TensorFlow, loaded when they are asked for (tensorflow/python/util/lazy_loader.py)."""
_HEAVY: Final = ("keras", "keras_tuner", "numpy", "tensorflow_datasets", "tf_keras")
"""What is worth importing besides, where the job does; none of them starts a thread."""


@dataclass(frozen=True, slots=True)
class Preload:
    """What a node's agent is asked to start before its tasks."""

    command: Command
    tasks: frozenset[str]
    """Those that may be forks of it."""


def is_read_at_import(name: str) -> bool:
    """Whether another value must be there before the imports."""
    ours = name.startswith("TFCLUSTER_")
    return not ours and name not in _AFTER_IMPORT and name.startswith(_AT_IMPORT)


def modules(spec: ClusterSpec, code: Code | None) -> tuple[str, ...]:
    """Return what to import ahead, in the notation of `tfcluster_workers.preload.importer`."""
    if spec.runtime.preload == "off" or not has_hooks(spec) or code is None or obstacle(code):
        return ()
    tops = {name.partition(".")[0] for name in code.imports}
    found = tuple(name for name in _HEAVY if name in tops)
    if "tensorflow" not in tops:
        return found if spec.runtime.preload == "on" else ()
    return ("tensorflow", *(_PARTS[part] for part in sorted(code.parts)), *found)


def obstacle(code: Code) -> str:
    """What in the job's files forbids it; empty for nothing."""
    if UNKNOWN in code.sets:
        return "the job sets variables of the environment whose names only it knows"
    names = sorted(name for name in code.sets if _comes_too_late(name))
    listed = ", ".join(names)
    return f"the job sets {listed} itself, too late for a module imported ahead" if names else ""


def _comes_too_late(name: str) -> bool:
    """Whether a script that sets it before its imports would find it ignored in a fork."""
    return is_read_at_import(name) and not name.startswith(_BY_INTERPRETER)


def why_not(spec: ClusterSpec, plan: Plan, context: PlanContext) -> Iterator[str]:
    """Sentences where tasks start cold that need not."""
    wish, head = spec.runtime.preload, "tasks import by themselves"
    if plan.preload:
        yield from _cold_ones(plan)
    elif wish != "off" and context.code is not None and (why := obstacle(context.code)):
        if wish == "on" or plan.needs_tensorflow:
            yield f"{head}: {why}; set them in job.env instead, and not in the files"
    elif wish == "on" and not has_hooks(spec):
        yield f"{head}: without hooks none is a fork (runtime.preload)"
    elif wish == "on":
        yield f"{head}: the job's files import none of what is imported ahead (runtime.preload)"


def _cold_ones(plan: Plan) -> Iterator[str]:
    for node in plan.nodes:
        if (ahead := preload_on(plan, node.name)) is None:
            continue
        for task in plan.tasks:
            if task.has_own_command:
                continue
            if task.node == node.name and str(task.id) not in ahead.tasks:
                yield f"{task.id} imports by itself: its environment differs in what is read then"


def preload_on(plan: Plan, node: str) -> Preload | None:
    """What `node`'s agent is to start, where it is worth it: several tasks, or restarts."""
    if not plan.preload or plan.node(node).backend == DOCKER:
        return None
    tasks = [task for task in plan.tasks if task.node == node and not task.has_own_command]
    is_worth_it = len(tasks) > 1 or plan.supervision.max_restarts > 0
    return _of(tasks, plan.preload) if tasks and is_worth_it else None


def _of(tasks: Sequence[TaskPlan], names: tuple[str, ...]) -> Preload:
    """For the largest number of tasks that want the same environment at their imports."""
    alike: dict[frozenset[tuple[str, str]], list[TaskPlan]] = {}
    for task in tasks:
        alike.setdefault(_read_at_import(task.command), []).append(task)
    forks = max(alike.values(), key=len)
    like = forks[0].command
    env = tuple(v for v in like.env if v.name not in _AFTER_IMPORT and not v.secret)
    one_thread = EnvVar("OPENBLAS_NUM_THREADS", "1", "tfcluster")
    return Preload(
        replace(like, argv=(*like.argv[:2], "preload", *names), env=(*env, one_thread)),
        frozenset(str(task.id) for task in forks),
    )


def _read_at_import(command: Command) -> frozenset[tuple[str, str]]:
    return frozenset((v.name, v.value) for v in command.env if is_read_at_import(v.name))
