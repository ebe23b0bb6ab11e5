"""What in the surroundings would make a plan fail, found before anything is started."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tfcluster.agent.container_wait import OLDEST_PYTHON
from tfcluster.errors import InterpreterError, SurroundingsError
from tfcluster.plan import attempt, command
from tfcluster.plan.context import LOCAL, PlanContext
from tfcluster.plan.keras_settings import (
    TESTED,
    as_inherited,
    has_hooks,
    has_keras_3,
    install_tf_keras,
    legacy_keras,
    needs_patching,
)
from tfcluster.plan.placement import by_machine, is_loopback, own_gpus, seats, shares_this_machine
from tfcluster.plan.plan import NodePlan, Plan, TaskId
from tfcluster.plan.resources import gpu_wishes, shared_gpus

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec

_SHOWN = 8
_BY_HAND: Final = "an evaluator beside a chief that is started by hand"
ESTIMATOR_CURE: Final = "name a Python 3.9 to 3.11 with TensorFlow 2.15: --python PATH"
_TENSORFLOW = frozenset({"tensorflow", "tf_keras", "tensorflow_datasets"})


def require(spec: ClusterSpec, plan: Plan, context: PlanContext) -> None:
    """Raise the first obstacle (exit 3); `up` calls this, `plan` only tells of them."""
    for obstacle in find(spec, plan, context):
        raise obstacle


def find(spec: ClusterSpec, plan: Plan, context: PlanContext) -> Iterator[SurroundingsError]:
    """Every obstacle, the most basic first."""
    for node in plan.nodes:
        yield from _without_tensorflow(spec, node, context)
        yield from _too_old(spec, node)
        yield from _without_estimator(spec, node, context)
        yield from _without_keras_2(spec, node)
        yield from _unknown_keras_3(as_inherited(spec, node.name, context), node, context)
    yield from _lone_searches(spec, plan, context)
    if context.gpus is not None:
        yield from _absent_gpus(spec, context.gpus, context)
        yield from _nccl(spec, plan)
    yield from _shared_storage(plan)
    yield from _private_network(plan)
    yield from _mounts(plan)


def needs_tensorflow(spec: ClusterSpec, context: PlanContext) -> bool:
    """Decided from evidence: a script that never imports TensorFlow is a valid job."""
    programs = command.programs(spec.job)
    if not any(program.has_hooks for program in programs):
        return False
    if any((program.module or "").startswith("tfcluster_workers.") for program in programs):
        return True
    return bool(_imported(context) & _TENSORFLOW)


def needs_estimator(spec: ClusterSpec, context: PlanContext) -> bool:
    """Whether it is certain that the job uses ``tf.estimator``."""
    programs = command.programs(spec.job)
    if not any(program.has_hooks for program in programs):
        return False
    if any(one.module == "tfcluster_workers.jobs.estimator_mnist" for one in programs):
        return True
    own = context.code if context.imports is not None else None
    return own is not None and bool(own.estimator.sure())


def _imported(context: PlanContext) -> set[str]:
    return {name.partition(".")[0] for name in context.imports or ()}


def _without_tensorflow(
    spec: ClusterSpec, node: NodePlan, context: PlanContext
) -> Iterator[SurroundingsError]:
    python = node.interpreter
    if python is None or python.version is None or "tensorflow" in python.packages:
        return
    if needs_tensorflow(spec, context):
        message = f"the job needs TensorFlow, and {python.path} ({python.why}) has none"
        fix = f"{python.path} -m pip install tensorflow, or choose another with --python PATH"
        yield InterpreterError(message, fix=fix)


def _too_old(spec: ClusterSpec, node: NodePlan) -> Iterator[SurroundingsError]:
    """What runs in the tasks is written for Python 3.9; a command brings its own."""
    python = node.interpreter
    if python is None or python.version is None or not has_hooks(spec):
        return
    if tuple(map(int, re.findall(r"\d+", python.version)[:2])) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        yield InterpreterError(
            f"Python {oldest} or newer is needed, and {python.path} ({python.why}) is"
            f" {python.version}",
            fix="choose another with --python PATH, or do without the hooks: --set job.hooks=off",
        )


def _without_estimator(
    spec: ClusterSpec, node: NodePlan, context: PlanContext
) -> Iterator[SurroundingsError]:
    """TensorFlow 2.15 was Estimator's last (release notes of 2.16, tensorflow#76349)."""
    python = node.interpreter
    if python is None or not has_keras_3(python) or not needs_estimator(spec, context):
        return
    places = context.code.estimator.sure() if context.code is not None else ()
    where = f" ({places[0]} uses it)" if places and context.imports is not None else ""
    has = f"{python.path} ({python.why}) has {python.packages['tensorflow']}"
    message = f"tf.estimator ended with TensorFlow 2.15{where}, and {has}"
    yield InterpreterError(message, fix=ESTIMATOR_CURE)


def _without_keras_2(spec: ClusterSpec, node: NodePlan) -> Iterator[SurroundingsError]:
    python = node.interpreter
    if spec.keras.version != "2" or python is None or not has_keras_3(python):
        return
    if "tf-keras" not in python.packages:
        message = f"keras.version is 2, and {python.path} has no tf-keras"
        yield InterpreterError(message, fix=install_tf_keras(python))


def _unknown_keras_3(
    spec: ClusterSpec, node: NodePlan, context: PlanContext
) -> Iterator[SurroundingsError]:
    """Its `fit` fails on several workers, this release cannot be patched, tf_keras cannot stand in.

    Decided from evidence: a job that only says `tf.keras` is refused by `fit` itself.
    """
    python = node.interpreter
    if python is None or not has_keras_3(python) or not needs_patching(spec, python):
        return
    imports_keras = "keras" in _imported(context)
    if legacy_keras(spec, python) and not imports_keras:
        return
    ours = (spec.job.module or "").startswith("tfcluster_workers.jobs.")
    if imports_keras or ours or "tensorflow.keras" in (context.imports or ()):
        message = (
            f"Keras {python.packages['keras']} of {python.path} is not among the releases whose"
            f" `fit` can be patched for several workers ({TESTED[0]} to {TESTED[1]})"
        )
        other = "write `import tf_keras as keras`" if imports_keras else install_tf_keras(python)
        pin = f"{python.path} -m pip install 'keras=={TESTED[1]}'"
        yield InterpreterError(message, fix=f"{pin}, or {other}")


def _lone_searches(
    spec: ClusterSpec, plan: Plan, context: PlanContext
) -> Iterator[SurroundingsError]:
    """KerasTuner's tasks know of each other by variables that only a job of kind tuner gets."""
    if "kind" in spec.job.model_fields_set or context.code is None or not context.code.searches:
        return
    trains = [t for t in (*plan.tasks, *plan.elsewhere) if t.id.job in ("chief", "worker")]
    named = {var.name for task in plan.tasks for var in task.command.env} | context.code.sets
    if len(trains) < 2 or not named.isdisjoint(attempt.VARIABLES):
        return
    message = f"the job calls KerasTuner's search: {len(trains)} tasks would each run all of it"
    chief = "" if "chief" in spec.cluster else " --set cluster.chief=1"
    fix = (
        f"--set job.kind=tuner{chief} makes it one search, with the workers as its tuners;"
        " --set job.kind=training leaves it as it is"
    )
    yield SurroundingsError(f"{message}, in one folder", fix=fix)


def _absent_gpus(
    spec: ClusterSpec, there: Sequence[int], context: PlanContext
) -> Iterator[SurroundingsError]:
    """TensorFlow itself would train on the CPU: an index that is not there hides all GPUs."""
    for its_seats in by_machine(seats(spec, context.addresses)):
        if not shares_this_machine(its_seats[0], context):
            continue
        own = own_gpus(its_seats, is_search=spec.job.kind == "tuner")
        wishes = gpu_wishes([seat.id for seat in its_seats], spec.resources.gpus, own)
        listed = {task: its for task, its in wishes.items() if isinstance(its, list | tuple)}
        for field, indexes in {_gpu_field(task, own): its for task, its in listed.items()}.items():
            if absent := [index for index in indexes if index not in there]:
                yield _gpus_missing({field: f"GPU {_numbers(absent)}"}, there, context)
        left = [gpu for gpu in there if not any(gpu in its for its in listed.values())]
        numbers = {task: its for task, its in wishes.items() if isinstance(its, int) and its}
        if sum(numbers.values()) > len(left):
            yield _gpus_missing(_asked_by_number(numbers, own), left, context)


def _gpu_field(task: TaskId, own: Collection[TaskId]) -> str:
    return f"cluster.{task.job}.{task.index}.gpus" if task in own else "resources.gpus"


def _asked_by_number(numbers: Mapping[TaskId, int], own: Collection[TaskId]) -> dict[str, str]:
    """Field → ``1 GPU for each of worker:0, worker:1``."""
    tasks: dict[str, list[TaskId]] = {}
    for task in numbers:
        tasks.setdefault(_gpu_field(task, own), []).append(task)
    asked = {}
    for field, its in tasks.items():
        number = numbers[its[0]]
        shown = ", ".join(map(str, its[:_SHOWN])) + (", …" if len(its) > _SHOWN else "")
        each = "each of " if len(its) > 1 else ""
        asked[field] = f"{number} GPU{'s' * (number > 1)} for {each}{shown}"
    return asked


def _gpus_missing(
    asked: Mapping[str, str], there: Sequence[int], context: PlanContext
) -> SurroundingsError:
    """`asked`: field → what it asks for; `there`: the GPUs that it may choose from."""
    wanted = "; ".join(f"{field} asks for {what}" for field, what in asked.items())
    left = " left" if len(there) < len(context.gpus or ()) else ""
    has = f"{len(there)}{left} (GPU {_numbers(there)})" if there else f"no GPU{left}"
    shown = context.environ.get("CUDA_VISIBLE_DEVICES")
    by_shell = "" if shown is None else f"; CUDA_VISIBLE_DEVICES is {shown!r} in this shell"
    on_cpu = " ".join(f"--set {field}=0" for field in asked)
    fix = f"ask for fewer, or for none: {on_cpu}; `nvidia-smi` shows what the driver finds"
    return SurroundingsError(f"{wanted}, and this machine has {has}{by_shell}", fix=fix)


def _numbers(indexes: Sequence[int]) -> str:
    return ", ".join(map(str, indexes))


def _nccl(spec: ClusterSpec, plan: Plan) -> Iterator[SurroundingsError]:
    """TensorFlow itself only warns and runs RING (collective_all_reduce_strategy.py)."""
    if spec.strategy.communication != "NCCL":
        return
    fix = "--set strategy.communication=RING, or AUTO"
    trains = [t for t in plan.tasks if t.node == LOCAL and t.id.job in ("chief", "worker")]
    if without := [str(t.id) for t in trains if not t.gpus]:
        names = ", ".join(without)
        yield SurroundingsError(
            f"strategy.communication is NCCL, and there is no GPU for {names}", fix=fix
        )
    elif shared := shared_gpus([t.gpus for t in trains]):
        names = ", ".join(map(str, sorted(shared)))
        yield SurroundingsError(f"NCCL cannot run two tasks on one GPU ({names})", fix=fix)


def _shared_storage(plan: Plan) -> Iterator[SurroundingsError]:
    """Their state is spread over the tasks: no one task's folder holds all of it."""
    what: str | None = "a tuner job" if plan.kind == "tuner" else "a parameter-server job"
    if plan.strategy != "parameter_server" and plan.kind != "tuner":
        what = _lonely_evaluator(plan)
    nodes = {task.node for task in (*plan.tasks, *plan.elsewhere)}
    is_spread = len(nodes) > 1 or (plan.joins and plan.elsewhere) or what == _BY_HAND
    if what and is_spread and plan.checkpoints.dir is None:
        places = "containers" if any(node.container for node in plan.nodes) else "hosts"
        where = "" if what == _BY_HAND else f" over several {places}"
        message = f"{what}{where} needs storage that all of them share"
        fix = "--set checkpoints.dir=/a/mount/of/all (or gs://…)"
        yield SurroundingsError(message, fix=fix)


def _lonely_evaluator(plan: Plan) -> str | None:
    """One that joins where nobody brings it what the chief saves: it would wait for ever."""
    evaluators = [task for task in plan.tasks if task.id.job == "evaluator"]
    is_beside = any(task.id == plan.chief for task in plan.tasks)
    if is_beside or not evaluators or not plan.elsewhere:
        return None
    return "an evaluator" if plan.joins else _BY_HAND


def _private_network(plan: Plan) -> Iterator[SurroundingsError]:
    """Inside it there is this machine's loopback and nothing else (user_namespaces(7))."""
    private = {n.name for n in plan.nodes if n.network == "private" and n.container is None}
    mine = [t for t in plan.tasks if t.node in private]
    far = [t for t in mine if not is_loopback(t.host)] or (mine and [*plan.elsewhere])
    if far:
        message = f"in a private network {far[0].host} ({far[0].id}) cannot be reached"
        fix = "give numbers instead of addresses (--set cluster.worker=2), or localhost:0"
        yield SurroundingsError(message, fix=f"{fix}; or --set runtime.network=host")
    storage = plan.checkpoints.dir or ""
    if private and "://" in storage and not storage.startswith("file://"):
        message = f"from a private network checkpoints.dir {storage} cannot be reached"
        fix = "gather checkpoints here (leave checkpoints.dir out), or --set runtime.network=host"
        yield SurroundingsError(message, fix=fix)


def _mounts(plan: Plan) -> Iterator[SurroundingsError]:
    """In its place nothing of the container's own could be seen."""
    found = [node.container for node in plan.nodes if node.container is not None]
    folders = {path for one in found for path in (one.data_dir, one.shared_dir)}
    for path in [name for name in ("/", "/tmp") if name in folders]:
        fix = "name a folder below it in data_dir and checkpoints.dir"
        yield SurroundingsError(f"{path} cannot be mounted: a container needs its own", fix=fix)
