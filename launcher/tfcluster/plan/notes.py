"""What the start panel says once about a plan: which Python, which ports, which Keras."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfcluster.plan.keras import fails_with_keras_3, has_keras_3, wants_keras_2
from tfcluster.plan.plan import Interpreter, NodePlan, Plan

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec

_KERAS_3_FAILS = (
    "Keras 3 fails under MultiWorkerMirroredStrategy with 2 or more workers (keras#20585)"
)


def find(spec: ClusterSpec, plan: Plan) -> Iterator[str]:
    """One sentence each, in the order in which they matter."""
    for node in plan.nodes:
        if node.interpreter is not None:
            yield f"Python of {_place(node)}: {describe(node.interpreter)}"
            yield from _keras(spec, node.interpreter)
    if plan.kind != "plain" and spec.runtime.network == "host":
        yield _open_ports(plan)
    if spec.strategy.communication == "AUTO" and any(task.gpus for task in plan.tasks):
        yield (
            "communication AUTO runs RING over gRPC even on GPUs; "
            "--set strategy.communication=NCCL is faster there"
        )


def describe(python: Interpreter) -> str:
    """``/venv/bin/python (3.11.9, tensorflow 2.21.0, keras 3.15.1), $VIRTUAL_ENV``."""
    shown = ("tensorflow", "keras", "tf-keras")
    known = [f"{name} {python.packages[name]}" for name in shown if name in python.packages]
    versions = ", ".join([python.version, *known]) if python.version else "version not known yet"
    return f"{python.path} ({versions}), chosen by: {python.why}"


def _place(node: NodePlan) -> str:
    return "the tasks" if node.name == "local" else node.name


def _keras(spec: ClusterSpec, python: Interpreter) -> Iterator[str]:
    if not has_keras_3(python) or not wants_keras_2(spec):
        if has_keras_3(python) and spec.keras.version == "3" and fails_with_keras_3(spec):
            yield f"{_KERAS_3_FAILS}, and keras.version asks for it"
        return
    if version := python.packages.get("tf-keras"):
        reason = _KERAS_3_FAILS if fails_with_keras_3(spec) else "keras.version is 2"
        yield f"{reason}: tf_keras {version} is used"
    else:
        minor = ".".join(python.packages["tensorflow"].split(".")[:2])
        yield f"{_KERAS_3_FAILS}: {python.path} -m pip install 'tf-keras~={minor}.0'"


def _open_ports(plan: Plan) -> str:
    fixed = [f"{task.host}:{task.port}" for task in plan.tasks if task.port]
    ports = ", ".join(fixed) if len(fixed) == len(plan.tasks) else "chosen at start"
    return (
        f"Ports open without a password, on all interfaces: {ports}. Whoever reaches them can run "
        "code as you (TensorFlow's SECURITY.md): use a network you trust"
    )
