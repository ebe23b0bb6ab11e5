"""Which Keras the tasks get: Keras 3 fails on several workers unless its release can be mended.

`tfcluster_workers.keras3` mends it inside the task, in the releases it was tested with; where it
cannot, tf_keras stands in (TF_USE_LEGACY_KERAS).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tfcluster.plan.plan import Interpreter
from tfcluster.plan.settings import has_hooks, strategy_name
from tfcluster.plan.surroundings import LOCAL, Surroundings

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec

TESTED: Final = ("3.3.0", "3.15.1")
"""First and last release of Keras that can be mended: `keras3.TESTED` of the workers' half."""

SWITCH: Final = "TFCLUSTER_KERAS3_SHIM"
"""`off` in a task's environment: Keras 3 stays as it is (`keras3.SWITCH` of the workers' half)."""


def as_inherited(spec: ClusterSpec, node: str, around: Surroundings) -> ClusterSpec:
    """`spec` whose `job.env` names the switch, where tasks of `node` have it of the launcher."""
    own, inherited = spec.job.env, around.environ.get(SWITCH)
    reaches = node == LOCAL or SWITCH in own  # null: the launcher's value, everywhere
    if inherited is None or own.get(SWITCH) is not None or not reaches:
        return spec
    job = spec.job.model_copy(update={"env": {**own, SWITCH: inherited}})
    return spec.model_copy(update={"job": job})


def has_keras_3(python: Interpreter | None) -> bool:
    """Whether ``tf.keras`` of this Python is Keras 3: so since TensorFlow 2.16."""
    return python is not None and is_from_2_16(python.packages)


def is_from_2_16(packages: Mapping[str, str]) -> bool:
    """Whether a Python with these packages has TensorFlow 2.16 or a later one."""
    return _numbers(packages.get("tensorflow", "")) >= (2, 16)


def is_tested(version: str) -> bool:
    """Whether this release of Keras lies in the range that is mended."""
    first, last = map(_numbers, TESTED)
    return first <= _numbers(version) <= last


def is_mended(spec: ClusterSpec, python: Interpreter) -> bool:
    """Whether Keras 3 will work on several workers: through our hooks, in a release we know."""
    return may_mend(spec) and is_tested(python.packages.get("keras", ""))


def may_mend(spec: ClusterSpec) -> bool:
    """Whether our hooks are in the tasks and were not told to leave Keras alone."""
    is_off = str(spec.job.env.get(SWITCH) or "").lower() in {"off", "0", "false", "no"}
    return has_hooks(spec) and not is_off


def needs_mending(spec: ClusterSpec, python: Interpreter) -> bool:
    """Whether `fit` would refuse this Keras 3: several workers, our hooks, a release unknown."""
    if "keras" not in python.packages or spec.keras.version == "2" or spec.job.kind == "plain":
        return False
    return fails_with_keras_3(spec) and may_mend(spec) and not is_mended(spec, python)


def fails_with_keras_3(spec: ClusterSpec) -> bool:
    """`fit` on two or more workers' processes, keras#20585 (open in every release to 3.15)."""
    trains = sum(_count(spec.cluster.get(job, 0)) for job in ("chief", "worker"))
    return strategy_name(spec) == "multi_worker_mirrored" and trains >= 2


def wants_keras_2(spec: ClusterSpec, python: Interpreter) -> bool:
    """Whether the tasks should see Keras 2: by request, or because Keras 3 would not do."""
    if spec.job.kind == "plain" or spec.keras.version == "3":
        return False
    if spec.keras.version == "2" or strategy_name(spec) == "parameter_server":
        return True
    return fails_with_keras_3(spec) and not is_mended(spec, python)


def legacy_keras(spec: ClusterSpec, python: Interpreter | None) -> bool:
    """Whether TF_USE_LEGACY_KERAS is set: without tf-keras it would break ``tf.keras`` wholly."""
    if python is None or not has_keras_3(python) or not wants_keras_2(spec, python):
        return False
    return "tf-keras" in python.packages


def install_tf_keras(python: Interpreter) -> str:
    """The command that gets the tf-keras of this Python's TensorFlow."""
    minor = ".".join(python.packages["tensorflow"].split(".")[:2])
    return f"{python.path} -m pip install 'tf-keras~={minor}.0'"


def _count(listed: object) -> int:
    if isinstance(listed, int):
        return listed
    return len(listed) if isinstance(listed, list | tuple) else 0


def _numbers(version: str) -> tuple[int, ...]:
    """The first three numbers of a version; a release candidate counts as its release."""
    found: list[int] = []
    for part in version.split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)
