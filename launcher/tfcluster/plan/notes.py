"""What a plan has to say in sentences; Python and open ports the panels show by themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from tfcluster.plan.keras import fails_with_keras_3, has_keras_3, wants_keras_2
from tfcluster.plan.plan import Interpreter, Plan

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec

_KERAS_3_FAILS = (
    "Keras 3 fails under MultiWorkerMirroredStrategy with 2 or more workers (keras#20585)"
)


def find(spec: ClusterSpec, plan: Plan, imports: Collection[str] | None = None) -> Iterator[str]:
    """One sentence each, in the order in which they matter; `imports`: the job's own."""
    packages = {name.partition(".")[0] for name in imports or ()}
    for node in plan.nodes:
        if node.interpreter is not None:
            yield from _keras(spec, node.interpreter, imports_keras="keras" in packages)
    if spec.strategy.communication == "AUTO" and any(task.gpus for task in plan.tasks):
        yield (
            "communication AUTO runs RING over gRPC even on GPUs; "
            "--set strategy.communication=NCCL is faster there"
        )


def _keras(spec: ClusterSpec, python: Interpreter, *, imports_keras: bool) -> Iterator[str]:
    if not has_keras_3(python) or not wants_keras_2(spec):
        if has_keras_3(python) and spec.keras.version == "3" and fails_with_keras_3(spec):
            yield f"{_KERAS_3_FAILS}, and keras.version asks for it"
        return
    if imports_keras and fails_with_keras_3(spec):
        # TF_USE_LEGACY_KERAS changes tf.keras only (tensorflow/python/util/lazy_loader.py).
        cure = "write `import tf_keras as keras`, or use tf.keras"
        yield f"{_KERAS_3_FAILS}, and `import keras` is Keras 3: {cure}"
    elif version := python.packages.get("tf-keras"):
        reason = _KERAS_3_FAILS if fails_with_keras_3(spec) else "keras.version is 2"
        yield f"{reason}: tf_keras {version} is used"
    else:
        minor = ".".join(python.packages["tensorflow"].split(".")[:2])
        yield f"{_KERAS_3_FAILS}: {python.path} -m pip install 'tf-keras~={minor}.0'"
