"""What in the surroundings would make a plan fail, found before anything is started."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfcluster.agent.seat import OLDEST_PYTHON
from tfcluster.errors import InterpreterError, SurroundingsError
from tfcluster.plan import command
from tfcluster.plan.keras import (
    TESTED,
    as_inherited,
    has_keras_3,
    install_tf_keras,
    legacy_keras,
    needs_mending,
)
from tfcluster.plan.placement import is_loopback
from tfcluster.plan.plan import NodePlan, Plan
from tfcluster.plan.resources import shared_gpus
from tfcluster.plan.settings import has_hooks
from tfcluster.plan.surroundings import LOCAL, Surroundings

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec

_TENSORFLOW = frozenset({"tensorflow", "tf_keras", "tensorflow_datasets"})


def require(spec: ClusterSpec, plan: Plan, around: Surroundings) -> None:
    """Raise the first obstacle (exit 3); `up` calls this, `plan` only tells of them."""
    for obstacle in find(spec, plan, around):
        raise obstacle


def find(spec: ClusterSpec, plan: Plan, around: Surroundings) -> Iterator[SurroundingsError]:
    """Every obstacle, the most basic first."""
    yield from _absent(spec, plan, around)
    for node in plan.nodes:
        yield from _without_tensorflow(spec, node, around)
        yield from _too_old(spec, node)
        yield from _without_estimator(spec, node, around)
        yield from _without_keras_2(spec, node)
        yield from _unknown_keras_3(as_inherited(spec, node.name, around), node, around)
    if around.gpus is not None:
        yield from _nccl(spec, plan)
    yield from _shared_storage(plan)
    yield from _private_network(plan)
    yield from _mounts(plan)


def needs_tensorflow(spec: ClusterSpec, around: Surroundings) -> bool:
    """Decided from evidence: a script that never imports TensorFlow is a valid job."""
    if spec.job.command is not None:
        return False
    if (spec.job.module or "").startswith("tfcluster_workers."):
        return True
    return bool(_imported(around) & _TENSORFLOW)


def _imported(around: Surroundings) -> set[str]:
    return {name.partition(".")[0] for name in around.imports or ()}


def _absent(spec: ClusterSpec, plan: Plan, around: Surroundings) -> Iterator[SurroundingsError]:
    for path, what, field in needed_paths(spec, around):
        if path in around.absent:
            cure = f"{field} is relative to {_base(field, plan, around)}"
            yield SurroundingsError(f"there is no {what} at {path}", cure=cure)


def needed_paths(spec: ClusterSpec, around: Surroundings) -> Iterator[tuple[str, str, str]]:
    """(absolute path, what it is, field of the spec) of each local path that has to exist."""
    workdir = command.absolute(spec.job.workdir, around.spec_dir, around.environ)
    yield workdir, "folder", "job.workdir"
    if spec.job.script is not None:
        yield command.absolute(spec.job.script, workdir, {}), "script", "job.script"
    if spec.job.prepare is not None and spec.job.prepare.script is not None:
        script = command.absolute(spec.job.prepare.script, workdir, {})
        yield script, "script", "job.prepare.script"


def _base(field: str, plan: Plan, around: Surroundings) -> str:
    if field == "job.workdir":
        return f"the spec's folder, {around.spec_dir}"
    return f"the workdir, {plan.workdir}"


def _without_tensorflow(
    spec: ClusterSpec, node: NodePlan, around: Surroundings
) -> Iterator[SurroundingsError]:
    python = node.interpreter
    if python is None or python.version is None or "tensorflow" in python.packages:
        return
    if needs_tensorflow(spec, around):
        message = f"the job needs TensorFlow, and {python.path} ({python.why}) has none"
        cure = f"{python.path} -m pip install tensorflow, or choose another with --python PATH"
        yield InterpreterError(message, cure=cure)


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
            cure="choose another with --python PATH, or do without the hooks: --set job.hooks=off",
        )


def _without_estimator(
    spec: ClusterSpec, node: NodePlan, around: Surroundings
) -> Iterator[SurroundingsError]:
    """TensorFlow 2.15 was Estimator's last (release notes of 2.16, tensorflow#76349)."""
    python = node.interpreter
    if python is None or not has_keras_3(python):
        return
    ours = spec.job.module == "tfcluster_workers.jobs.estimator_mnist"
    if ours or "tensorflow_estimator" in _imported(around):
        message = f"Estimator ended with TensorFlow 2.15, and {python.path} ({python.why}) has "
        cure = "name a Python 3.9 to 3.11 with TensorFlow 2.15: --python PATH"
        yield InterpreterError(message + python.packages["tensorflow"], cure=cure)


def _without_keras_2(spec: ClusterSpec, node: NodePlan) -> Iterator[SurroundingsError]:
    python = node.interpreter
    if spec.keras.version != "2" or python is None or not has_keras_3(python):
        return
    if "tf-keras" not in python.packages:
        message = f"keras.version is 2, and {python.path} has no tf-keras"
        yield InterpreterError(message, cure=install_tf_keras(python))


def _unknown_keras_3(
    spec: ClusterSpec, node: NodePlan, around: Surroundings
) -> Iterator[SurroundingsError]:
    """Its `fit` fails on several workers, this release cannot be mended, tf_keras cannot stand in.

    Decided from evidence: a job that only says `tf.keras` is refused by `fit` itself.
    """
    python = node.interpreter
    if python is None or not has_keras_3(python) or not needs_mending(spec, python):
        return
    imports_keras = "keras" in _imported(around)
    if legacy_keras(spec, python) and not imports_keras:
        return
    ours = (spec.job.module or "").startswith("tfcluster_workers.jobs.")
    if imports_keras or ours or "tensorflow.keras" in (around.imports or ()):
        message = (
            f"Keras {python.packages['keras']} of {python.path} is not among the releases whose"
            f" `fit` can be mended for several workers ({TESTED[0]} to {TESTED[1]})"
        )
        other = "write `import tf_keras as keras`" if imports_keras else install_tf_keras(python)
        pin = f"{python.path} -m pip install 'keras=={TESTED[1]}'"
        yield InterpreterError(message, cure=f"{pin}, or {other}")


def _nccl(spec: ClusterSpec, plan: Plan) -> Iterator[SurroundingsError]:
    """TensorFlow itself only warns and runs RING (collective_all_reduce_strategy.py)."""
    if spec.strategy.communication != "NCCL":
        return
    cure = "--set strategy.communication=RING, or AUTO"
    trains = [t for t in plan.tasks if t.node == LOCAL and t.id.job in ("chief", "worker")]
    if without := [str(t.id) for t in trains if not t.gpus]:
        names = ", ".join(without)
        yield SurroundingsError(
            f"strategy.communication is NCCL, and there is no GPU for {names}", cure=cure
        )
    elif shared := shared_gpus([t.gpus for t in trains]):
        names = ", ".join(map(str, sorted(shared)))
        yield SurroundingsError(f"NCCL cannot run two tasks on one GPU ({names})", cure=cure)


def _shared_storage(plan: Plan) -> Iterator[SurroundingsError]:
    """Their state is spread over the tasks: no one task's folder holds all of it."""
    what: str | None = "a tuner job" if plan.kind == "tuner" else "a parameter-server job"
    if plan.strategy != "parameter_server" and plan.kind != "tuner":
        what = _lonely_evaluator(plan)
    if what and (len(plan.nodes) > 1 or plan.elsewhere) and plan.checkpoints.dir is None:
        places = "containers" if any(node.container for node in plan.nodes) else "hosts"
        message = f"{what} over several {places} needs storage that all of them share"
        cure = "--set checkpoints.dir=/a/mount/of/all (or gs://…)"
        yield SurroundingsError(message, cure=cure)


def _lonely_evaluator(plan: Plan) -> str | None:
    """One that joins where nobody brings it what the chief saves: it would wait for ever."""
    evaluators = [task for task in plan.tasks if task.id.job == "evaluator"]
    is_beside = any(task.id == plan.chief for task in plan.tasks)
    return "an evaluator" if plan.joins and evaluators and not is_beside else None


def _private_network(plan: Plan) -> Iterator[SurroundingsError]:
    """Inside it there is this machine's loopback and nothing else (user_namespaces(7))."""
    private = {n.name for n in plan.nodes if n.network == "private" and n.container is None}
    mine = [t for t in plan.tasks if t.node in private]
    far = [t for t in mine if not is_loopback(t.host)] or (mine and [*plan.elsewhere])
    if far:
        message = f"in a private network {far[0].host} ({far[0].id}) cannot be reached"
        cure = "give numbers instead of addresses (--set cluster.worker=2), or localhost:0"
        yield SurroundingsError(message, cure=f"{cure}; or --set runtime.network=host")
    storage = plan.checkpoints.dir or ""
    if private and "://" in storage and not storage.startswith("file://"):
        message = f"from a private network checkpoints.dir {storage} cannot be reached"
        cure = "gather checkpoints here (leave checkpoints.dir out), or --set runtime.network=host"
        yield SurroundingsError(message, cure=cure)


def _mounts(plan: Plan) -> Iterator[SurroundingsError]:
    """In its place nothing of the container's own could be seen."""
    found = [node.container for node in plan.nodes if node.container is not None]
    folders = {path for one in found for path in (one.data_dir, one.shared_dir)}
    for path in [name for name in ("/", "/tmp") if name in folders]:
        cure = "name a folder below it in data_dir and checkpoints.dir"
        yield SurroundingsError(f"{path} cannot be mounted: a container needs its own", cure=cure)
