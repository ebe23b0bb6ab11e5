"""Checks for errors in the environment that would make a plan fail, made before the start."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tfcluster.agent.containers.container_wait import OLDEST_PYTHON
from tfcluster.errors import InterpreterError, SetupError, join_first
from tfcluster.plans import command, tf_config
from tfcluster.plans.context import LOCAL, PlanContext
from tfcluster.plans.keras_settings import (
    TESTED,
    has_hooks,
    has_keras_3,
    install_tf_keras,
    needs_patching,
    uses_legacy_keras,
    with_inherited_switch,
)
from tfcluster.plans.placement import (
    by_machine,
    find_task_gpus,
    place_tasks,
)
from tfcluster.plans.plan import Gpu, NodePlan, Plan, TaskId
from tfcluster.plans.resources import requested_gpus, shared_gpus
from tfcluster.spec.cluster import is_loopback
from tfcluster.spec.job import UNKNOWN_PROGRAM

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec

_BY_HAND: Final = "an evaluator whose chief is started by hand"
_LONGEST_VARIABLE: Final = 32 * 4096
"""Bytes of one variable with its name (MAX_ARG_STRLEN, execve(2))."""
_AROUND_HOST: Final = len('":12345", "')
_TENSORFLOW = frozenset({"tensorflow", "tf_keras", "tensorflow_datasets"})


def require(spec: ClusterSpec, plan: Plan, context: PlanContext) -> None:
    """Raise the first obstacle (exit 3); `up` calls this, `plan` only reports obstacles."""
    for obstacle in find(spec, plan, context):
        raise obstacle


def find(spec: ClusterSpec, plan: Plan, context: PlanContext) -> Iterator[SetupError]:
    """Yield every obstacle, the most basic first."""
    yield from _check_placeholders(spec)
    yield from _check_size(plan)
    yield from _check_variables(plan)
    for node in plan.nodes:
        yield from _check_tensorflow(spec, node, context)
        yield from _check_python_version(spec, node)
        yield from _check_keras_2(spec, node)
        yield from _check_keras_3(with_inherited_switch(spec, node.name, context), node, context)
    yield from _check_searches(spec, plan, context)
    if context.gpus is not None:
        yield from _check_gpus(spec, context.gpus, context)
        yield from _check_nccl(spec, plan)
    yield from _check_shared_storage(plan)
    yield from _check_private_network(plan)
    yield from _check_mounts(plan)
    yield from _check_wrap(plan)


def needs_tensorflow(spec: ClusterSpec, context: PlanContext) -> bool:
    """Return whether the job imports TensorFlow for certain; a valid job may never import it."""
    programs = command.programs(spec.job)
    if not any(program.has_hooks for program in programs):
        return False
    modules = {program.module or "" for program in programs} - {command.FUNCTION_MODULE}
    if any(module.startswith("tfcluster_workers.") for module in modules):
        return True
    return bool(context.packages & _TENSORFLOW)


def _check_placeholders(spec: ClusterSpec) -> Iterator[SetupError]:
    """Check that programs which `tfcluster import` could not know have been written."""
    commands = {"job.command": spec.job.command} | {
        f"job.per_task.{key}.command": step.command for key, step in spec.job.per_task.items()
    }
    if fields := [key for key, words in commands.items() if UNKNOWN_PROGRAM in (words or ())]:
        message = f"{' and '.join(fields)} still holds {UNKNOWN_PROGRAM} of `tfcluster import`"
        fix = "write the program there; `docker image inspect IMAGE` shows the image's Entrypoint"
        yield SetupError(message, fix=f"{fix} and Cmd")


def _check_size(plan: Plan) -> Iterator[SetupError]:
    """Check that the kernel passes a TF_CONFIG with all addresses to a task."""
    listed = [task for task in (*plan.tasks, *plan.elsewhere) if task.in_cluster]
    size = sum(len(task.host) + _AROUND_HOST for task in listed)
    if plan.kind == "training" and size > _LONGEST_VARIABLE:
        message = f"the TF_CONFIG of {len(listed)} tasks is too long: about {size} bytes"
        fix = "use fewer tasks, each with more GPUs: Linux passes at most"
        yield SetupError(message, fix=f"{fix} {_LONGEST_VARIABLE} bytes in a variable (execve(2))")


def _check_variables(plan: Plan) -> Iterator[SetupError]:
    """Check that the kernel passes each variable of the tasks and of `prepare` to a process."""
    commands = [*(task.command for task in plan.tasks), *plan.prepare.values()]
    sizes = {
        (var.name, var.source): len(f"{var.name}={var.value}\0".encode(errors="surrogateescape"))
        for command in commands
        for var in command.env
        if len(var.value) > _LONGEST_VARIABLE // 4
    }
    for (name, source), size in sizes.items():
        if size > _LONGEST_VARIABLE:
            yield SetupError(
                f"the variable {name} ({source}) is too long: {size} bytes; Linux passes at most"
                f" {_LONGEST_VARIABLE} (execve(2))",
                fix="write the value to a file of the workdir, and pass the path of that",
            )


def _check_tensorflow(
    spec: ClusterSpec, node: NodePlan, context: PlanContext
) -> Iterator[SetupError]:
    python = node.interpreter
    if python is None or python.version is None or "tensorflow" in python.packages:
        return
    if needs_tensorflow(spec, context):
        message = f"the job needs TensorFlow, but {python.path} ({python.why}) does not have it"
        fix = f"{python.path} -m pip install tensorflow, or choose another with --python PATH"
        yield InterpreterError(message, fix=fix)


def _check_python_version(spec: ClusterSpec, node: NodePlan) -> Iterator[SetupError]:
    """Check for Python 3.9, which `tfcluster_workers` needs; a command does not import it."""
    python = node.interpreter
    if python is None or python.version is None or not has_hooks(spec):
        return
    if tuple(map(int, re.findall(r"\d+", python.version)[:2])) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        yield InterpreterError(
            f"Python {oldest} or newer is needed, but {python.path} ({python.why}) is"
            f" {python.version}",
            fix="choose another with --python PATH, or switch the hooks off: --set job.hooks=off",
        )


def _check_keras_2(spec: ClusterSpec, node: NodePlan) -> Iterator[SetupError]:
    python = node.interpreter
    if spec.keras.version != "2" or python is None or not has_keras_3(python):
        return
    if "tf-keras" not in python.packages:
        message = f"keras.version is 2, but {python.path} has no tf-keras"
        yield InterpreterError(message, fix=install_tf_keras(python))


def _check_keras_3(spec: ClusterSpec, node: NodePlan, context: PlanContext) -> Iterator[SetupError]:
    """Refuse a Keras 3 whose `fit` fails on several workers, if it cannot be patched or replaced.

    It needs certainty: for a job that only uses `tf.keras`, `fit` itself raises the error.
    """
    python = node.interpreter
    if python is None or not has_keras_3(python) or not needs_patching(spec, python):
        return
    imports_keras = "keras" in context.packages
    if uses_legacy_keras(spec, python) and not imports_keras:
        return
    is_example = (spec.job.module or "").startswith("tfcluster_workers.jobs.")
    if imports_keras or is_example or "tensorflow.keras" in (context.imports or ()):
        message = (
            f"the `fit` of Keras {python.packages['keras']} ({python.path}) cannot be patched for"
            f" several workers: only {TESTED[0]} and newer can"
        )
        other = "write `import tf_keras as keras`" if imports_keras else install_tf_keras(python)
        pin = f"{python.path} -m pip install 'keras=={TESTED[1]}'"
        yield InterpreterError(message, fix=f"{pin}, or {other}")


def _check_searches(spec: ClusterSpec, plan: Plan, context: PlanContext) -> Iterator[SetupError]:
    """Refuse several tasks that would each run a whole KerasTuner search.

    They share one search only through variables that a job of kind `tuner` gets.
    """
    if "kind" in spec.job.model_fields_set or context.code is None or not context.code.searches:
        return
    trains = [t for t in (*plan.tasks, *plan.elsewhere) if t.id.job in ("chief", "worker")]
    variables = {var.name for task in plan.tasks for var in task.command.env} | context.code.sets
    if len(trains) < 2 or not variables.isdisjoint(tf_config.VARIABLES):
        return
    message = (
        f"the job calls KerasTuner's search: {len(trains)} tasks would each run the whole search"
    )
    chief = "" if "chief" in spec.cluster else " --set cluster.chief=1"
    fix = (
        f"run one search with the workers as tuners: --set job.kind=tuner{chief};"
        " to run it as it is: --set job.kind=training"
    )
    yield SetupError(f"{message}, in one folder", fix=fix)


def _check_gpus(
    spec: ClusterSpec, present: Sequence[Gpu], context: PlanContext
) -> Iterator[SetupError]:
    """Check that requested GPUs are present: TensorFlow would silently train on the CPU.

    A missing index in CUDA_VISIBLE_DEVICES hides all GPUs.
    """
    for placed_tasks in by_machine(place_tasks(spec, context.addresses)):
        if not context.is_here(placed_tasks[0].backend):
            continue
        task_gpus = find_task_gpus(placed_tasks, is_search=spec.job.kind == "tuner")
        requests = requested_gpus(
            [placed.id for placed in placed_tasks], spec.resources.gpus, task_gpus
        )
        lists = {task: gpus for task, gpus in requests.items() if isinstance(gpus, list | tuple)}
        by_field = {_gpu_field(task, task_gpus): gpus for task, gpus in lists.items()}
        for field, indexes in by_field.items():
            if absent := [index for index in indexes if index not in present]:
                yield _gpus_missing({field: f"GPU {_numbers(absent)}"}, present, context)
        free = [gpu for gpu in present if not any(gpu in gpus for gpus in lists.values())]
        numbers = {task: gpus for task, gpus in requests.items() if isinstance(gpus, int) and gpus}
        if sum(numbers.values()) > len(free):
            yield _gpus_missing(_describe_requests(numbers, task_gpus), free, context)


def _gpu_field(task: TaskId, task_gpus: Collection[TaskId]) -> str:
    return f"cluster.{task.job}.{task.index}.gpus" if task in task_gpus else "resources.gpus"


def _describe_requests(
    numbers: Mapping[TaskId, int], task_gpus: Collection[TaskId]
) -> dict[str, str]:
    """Return field → ``1 GPU for each of worker:0, worker:1``."""
    by_field: dict[str, list[TaskId]] = {}
    for task in numbers:
        by_field.setdefault(_gpu_field(task, task_gpus), []).append(task)
    requests = {}
    for field, tasks in by_field.items():
        number = numbers[tasks[0]]
        each = "each of " if len(tasks) > 1 else ""
        requests[field] = f"{number} GPU{'s' * (number > 1)} for {each}{join_first(tasks)}"
    return requests


def _gpus_missing(
    requests: Mapping[str, str], free: Sequence[Gpu], context: PlanContext
) -> SetupError:
    """Return the error for `requests` (field → GPUs that it requests); `free`: the GPUs left."""
    requested = "; ".join(f"{field} requests {gpus}" for field, gpus in requests.items())
    left = " left" if len(free) < len(context.gpus or ()) else ""
    has = f"{len(free)}{left} (GPU {_numbers(free)})" if free else f"no GPU{left}"
    visible = context.environ.get("CUDA_VISIBLE_DEVICES")
    in_shell = "" if visible is None else f"; CUDA_VISIBLE_DEVICES is {visible!r} in this shell"
    on_cpu = " ".join(f"--set {field}=0" for field in requests)
    fix = f"request fewer, or none: {on_cpu}; `nvidia-smi` lists the GPUs that the driver finds"
    return SetupError(f"{requested}, but this machine has {has}{in_shell}", fix=fix)


def _numbers(indexes: Sequence[Gpu]) -> str:
    return ", ".join(map(str, indexes))


def _check_nccl(spec: ClusterSpec, plan: Plan) -> Iterator[SetupError]:
    """Check that NCCL has a GPU for each task.

    TensorFlow itself only warns and runs RING (collective_all_reduce_strategy.py).
    """
    if spec.strategy.communication != "NCCL":
        return
    fix = "--set strategy.communication=RING, or AUTO"
    trains = [t for t in plan.tasks if t.node == LOCAL and t.id.job in ("chief", "worker")]
    if without := [str(t.id) for t in trains if not t.gpus]:
        names = ", ".join(without)
        yield SetupError(
            f"strategy.communication is NCCL, but there is no GPU for {names}", fix=fix
        )
    elif shared := shared_gpus([t.gpus for t in trains]):
        names = ", ".join(sorted(map(str, shared)))
        yield SetupError(f"NCCL cannot run two tasks on one GPU ({names})", fix=fix)


def _check_shared_storage(plan: Plan) -> Iterator[SetupError]:
    """Require shared storage for jobs whose state is spread over the folders of several tasks."""
    job: str | None = "a tuner job" if plan.kind == "tuner" else "a parameter-server job"
    if plan.strategy != "parameter_server" and plan.kind != "tuner":
        job = _evaluator_without_chief(plan)
    nodes = {task.node for task in (*plan.tasks, *plan.elsewhere)}
    is_spread = len(nodes) > 1 or (plan.joins and plan.elsewhere) or job == _BY_HAND
    if job and is_spread and plan.checkpoints.dir is None:
        places = "containers" if any(n.capabilities.has_image for n in plan.nodes) else "hosts"
        spread = "" if job == _BY_HAND else f" on several {places}"
        message = f"{job}{spread} needs storage that all its tasks share"
        fix = "--set checkpoints.dir=/shared/folder (or gs://…)"
        yield SetupError(message, fix=fix)


def _evaluator_without_chief(plan: Plan) -> str | None:
    """Return a description of an evaluator that cannot get the chief's checkpoints, or None.

    Checkpoints are copied to it only in the run that starts the chief; it would wait for ever.
    """
    has_evaluator = any(task.id.job == "evaluator" for task in plan.tasks)
    has_chief = any(task.id == plan.chief for task in plan.tasks)
    if has_chief or not has_evaluator or not plan.elsewhere:
        return None
    return "an evaluator" if plan.joins else _BY_HAND


def _check_private_network(plan: Plan) -> Iterator[SetupError]:
    """Check that a private network has all it needs: it has loopback only (user_namespaces(7))."""
    private = {n.name for n in plan.nodes if n.has_private_network}
    inside = [t for t in plan.tasks if t.node in private]
    outside = [t for t in inside if not is_loopback(t.host)] or (inside and [*plan.elsewhere])
    if outside:
        message = f"a private network cannot reach {outside[0].host} ({outside[0].id})"
        fix = "give numbers instead of addresses (--set cluster.worker=2), or localhost:0"
        yield SetupError(message, fix=f"{fix}; or --set runtime.network=host")
    storage = plan.checkpoints.dir or ""
    private |= {n.name for n in plan.nodes if n.network == "simulated"}
    if private and "://" in storage and not storage.startswith("file://"):
        message = f"a private network cannot reach checkpoints.dir {storage}"
        fix = "gather checkpoints instead (leave checkpoints.dir out)"
        yield SetupError(message, fix=f"{fix}, or --set runtime.network=host")


def _check_wrap(plan: Plan) -> Iterator[SetupError]:
    for node in plan.nodes:
        if node.wrap and (node.is_here or node.capabilities.has_image):
            where = "containers" if node.capabilities.has_image else "tasks on this machine"
            fix = "--set 'runtime.wrap=[]'"
            if node.is_here:
                fix += f", or start tfcluster in it: {shlex.join(node.wrap)} tfcluster …"
            yield SetupError(f"runtime.wrap has no effect on {where}", fix=fix)
            return


def _check_mounts(plan: Plan) -> Iterator[SetupError]:
    """Refuse mounts that would hide the container's own files."""
    containers = [node.container for node in plan.nodes if node.container is not None]
    folders = {path for made in containers for path in (made.data_dir, made.shared_dir)}
    for path in [name for name in ("/", "/tmp") if name in folders]:
        fix = "use a folder below it in data_dir and checkpoints.dir"
        yield SetupError(f"{path} cannot be mounted: a container needs its own", fix=fix)
