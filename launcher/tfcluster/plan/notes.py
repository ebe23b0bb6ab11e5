"""What a plan has to say in sentences; Python and open ports the panels show by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfcluster.plan import preloading
from tfcluster.plan.keras import (
    SWITCH,
    as_inherited,
    fails_with_keras_3,
    has_keras_3,
    install_tf_keras,
    is_mended,
    may_mend,
    wants_keras_2,
)
from tfcluster.plan.plan import Interpreter, Plan
from tfcluster.plan.settings import has_hooks
from tfcluster.plan.surroundings import LOCAL, Surroundings

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec

_KERAS_3_FAILS = (
    "Keras 3 fails under MultiWorkerMirroredStrategy with 2 or more workers (keras#20585)"
)


def find(spec: ClusterSpec, plan: Plan, around: Surroundings) -> Iterator[str]:
    """One sentence each, in the order in which they matter."""
    packages = {name.partition(".")[0] for name in around.imports or ()}
    for node in plan.nodes:
        if node.interpreter is not None and has_keras_3(node.interpreter):
            seen = as_inherited(spec, node.name, around)
            yield from _keras(seen, node.interpreter, imports_keras="keras" in packages)
            if not plan.needs_estimator:
                yield from _estimator(node.interpreter, around)
    if spec.resources.memory is not None and not plan.images:
        yield "resources.memory holds containers only (--backend docker)"
    if plan.resources.gpus == "all" and around.gpus == () and _uses_this_machine(plan, around):
        yield 'gpus is "all", and this machine has none: its tasks train on the CPU'
    if spec.runtime.user is not None and not plan.images:
        yield "runtime.user is for containers only (--backend docker)"
    yield from preloading.why_not(spec, plan, around)
    if spec.strategy.communication == "AUTO" and any(task.gpus for task in plan.tasks):
        yield (
            "communication AUTO runs RING over gRPC even on GPUs; "
            "--set strategy.communication=NCCL is faster there"
        )


def _estimator(python: Interpreter, around: Surroundings) -> Iterator[str]:
    """One that is used under a condition may be for an older TensorFlow."""
    if around.imports is None or around.code is None or not around.code.estimator.places:
        return
    yield (
        f"{around.code.estimator.places[0]} names tf.estimator, which TensorFlow"
        f" {python.packages['tensorflow']} does not have: it fails if it runs"
    )


def _uses_this_machine(plan: Plan, around: Surroundings) -> bool:
    return around.docker_is_here or any(task.node == LOCAL for task in plan.tasks)


def _keras(spec: ClusterSpec, python: Interpreter, *, imports_keras: bool) -> Iterator[str]:
    fails = fails_with_keras_3(spec) and not is_mended(spec, python)
    if not wants_keras_2(spec, python):
        if fails and spec.keras.version == "3":
            why = _why_not_mended(spec, python)
            yield f"{_KERAS_3_FAILS}, {why}: keras.version asks for it"
        return
    if imports_keras and fails:
        # TF_USE_LEGACY_KERAS changes tf.keras only (tensorflow/python/util/lazy_loader.py).
        cure = "write `import tf_keras as keras`, or use tf.keras"
        yield f"{_KERAS_3_FAILS}, {_why_not_mended(spec, python)}: {cure}"
    elif version := python.packages.get("tf-keras"):
        yield f"{_reason(spec, python)}: tf_keras {version} is used"
    elif fails:
        cure = f"leave `hooks` on, or {install_tf_keras(python)}"
        yield f"{_KERAS_3_FAILS}, {_why_not_mended(spec, python)}: {cure}"


def _reason(spec: ClusterSpec, python: Interpreter) -> str:
    if spec.keras.version == "2":
        return "keras.version is 2"
    if fails_with_keras_3(spec):
        return f"{_KERAS_3_FAILS}, {_why_not_mended(spec, python)}"
    return "Keras 3 does not know ParameterServerStrategy"


def _why_not_mended(spec: ClusterSpec, python: Interpreter) -> str:
    if not has_hooks(spec):
        return "and without hooks it cannot be mended"
    if not may_mend(spec):
        return f"and {SWITCH} is off"
    return f"and {python.packages.get('keras', 'this release')} is not one that is mended"
