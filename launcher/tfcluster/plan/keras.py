"""When tf_keras stands in for Keras 3, which fails under MultiWorkerMirroredStrategy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfcluster.plan.plan import Interpreter
from tfcluster.plan.settings import strategy_name

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec


def has_keras_3(python: Interpreter | None) -> bool:
    """Whether ``tf.keras`` of this Python is Keras 3: so since TensorFlow 2.16."""
    version = _minor(python.packages.get("tensorflow", "")) if python else None
    return version is not None and version >= (2, 16)


def fails_with_keras_3(spec: ClusterSpec) -> bool:
    """`fit` on two or more replicas' processes, keras#20585 (open in every release to 3.15)."""
    trains = sum(_count(spec.cluster.get(job, 0)) for job in ("chief", "worker"))
    return strategy_name(spec) == "multi_worker_mirrored" and trains >= 2


def wants_keras_2(spec: ClusterSpec) -> bool:
    """Whether the tasks should see Keras 2, by request or because Keras 3 would fail."""
    if spec.job.kind == "plain" or spec.keras.version == "3":
        return False
    return spec.keras.version == "2" or fails_with_keras_3(spec)


def legacy_keras(spec: ClusterSpec, python: Interpreter | None) -> bool:
    """Whether TF_USE_LEGACY_KERAS is set: without tf-keras it would break ``tf.keras`` wholly."""
    if python is None or not has_keras_3(python) or not wants_keras_2(spec):
        return False
    return "tf-keras" in python.packages


def _count(listed: object) -> int:
    if isinstance(listed, int):
        return listed
    return len(listed) if isinstance(listed, list | tuple) else 0


def _minor(version: str) -> tuple[int, int] | None:
    parts = version.split(".")
    if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return None
    return int(parts[0]), int(parts[1])
