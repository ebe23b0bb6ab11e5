"""The settings that tasks read, and the choice of Keras 2 or Keras 3 for them.

Keras 3 fails on several workers. `tfcluster_workers.keras3` patches it inside the task, in the
releases it was tested with; otherwise tasks get tf_keras (TF_USE_LEGACY_KERAS).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tfcluster.plan.command import programs
from tfcluster.plan.context import LOCAL, PlanContext
from tfcluster.plan.plan import Interpreter

if TYPE_CHECKING:
    from tfcluster.plan.plan import EnvVar
    from tfcluster.spec.model import ClusterSpec


def strategy_name(spec: ClusterSpec) -> str:
    """The spec's own choice, else what the cluster's jobs call for."""
    return spec.strategy.name or _fitting(spec)


def _fitting(spec: ClusterSpec) -> str:
    if spec.job.kind == "tuner":
        return "default"  # every tuner trains its trials alone
    return "parameter_server" if spec.cluster.get("ps") else "multi_worker_mirrored"


def has_hooks(spec: ClusterSpec) -> bool:
    """Whether tasks start through `tfcluster_workers.boot`, but for those with a command."""
    return spec.job.hooks == "auto" and any(one.has_hooks for one in programs(spec.job))


def tuned_settings(spec: ClusterSpec) -> dict[str, object]:
    """Settings that differ from their default: each must be read by some task, or is reported."""
    name = spec.strategy.name
    values: dict[str, Any] = {
        # What a script makes anyway needs no reading; `default` with ps is for tfcluster to know.
        "strategy": None if name == _fitting(spec) or "ps" in spec.cluster else name,
        "communication": spec.strategy.communication,
        "bytes_per_pack": spec.strategy.bytes_per_pack,
        "collective_timeout_s": spec.strategy.collective_timeout_s,
        "precision": spec.keras.precision,
        "steps_per_execution": spec.keras.steps_per_execution,
    }
    return {name: value for name, value in values.items() if value not in (None, "AUTO", 0)}


def settings_json(spec: ClusterSpec) -> str:
    """The value of ``TFCLUSTER_SETTINGS``, private to `tfcluster_workers`."""
    told: dict[str, object] = {"strategy": strategy_name(spec), **tuned_settings(spec)}
    if spec.keras.version != "auto":
        told["keras_version"] = spec.keras.version
    return json.dumps(told | {"hooks": has_hooks(spec)})


def asks_for_keras_3(env: Iterable[EnvVar]) -> bool:
    """Whether the spec of a task with these variables has ``keras.version: 3``."""
    told = next((var.value for var in env if var.name == "TFCLUSTER_SETTINGS"), "{}")
    return '"keras_version": "3"' in told


def named_data_dir(spec: ClusterSpec, host: str) -> tuple[str, str] | None:
    """Where data sets lie for tasks of `host`, and the field that says so; None: no field does."""
    for key in (host, "*"):
        settings = spec.runtime.hosts.get(key)
        if settings is not None and settings.data_dir:
            return settings.data_dir, f"runtime.hosts.{key}.data_dir"
    return None


TESTED: Final = ("3.3.0", "3.15.1")
"""First and last release of Keras that can be patched: `keras3.TESTED` of the workers' half."""

SWITCH: Final = "TFCLUSTER_KERAS3_SHIM"
"""`off` in a task's environment: Keras 3 stays as it is (`keras3.SWITCH` of the workers' half)."""


def as_inherited(spec: ClusterSpec, node: str, context: PlanContext) -> ClusterSpec:
    """`spec` whose `job.env` names the switch, where tasks of `node` have it of the launcher."""
    own, inherited = spec.job.env, context.environ.get(SWITCH)
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
    """Whether this release of Keras lies in the range that is patched."""
    first, last = map(_numbers, TESTED)
    return first <= _numbers(version) <= last


def is_patched(spec: ClusterSpec, python: Interpreter) -> bool:
    """Whether Keras 3 will work on several workers: through our hooks, in a release we know."""
    return may_patch(spec) and is_tested(python.packages.get("keras", ""))


def may_patch(spec: ClusterSpec) -> bool:
    """Whether our hooks are in the tasks and were not told to leave Keras alone."""
    is_off = str(spec.job.env.get(SWITCH) or "").lower() in {"off", "0", "false", "no"}
    return has_hooks(spec) and not is_off


def needs_patching(spec: ClusterSpec, python: Interpreter) -> bool:
    """Whether `fit` would refuse this Keras 3: several workers, our hooks, a release unknown."""
    if "keras" not in python.packages or spec.keras.version == "2" or spec.job.kind == "plain":
        return False
    return fails_with_keras_3(spec) and may_patch(spec) and not is_patched(spec, python)


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
    return fails_with_keras_3(spec) and not is_patched(spec, python)


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
