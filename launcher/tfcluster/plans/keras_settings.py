"""The settings that tasks read, and the choice of Keras 2 or Keras 3 for them.

Keras 3 fails on several workers. `tfcluster_workers.keras3` patches it inside the task; if it
cannot, tasks get tf_keras (TF_USE_LEGACY_KERAS).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

from tfcluster.agent import foreign_json
from tfcluster.plans.context import LOCAL, PlanContext
from tfcluster.plans.job_facts import default_strategy, has_hooks, strategy_name
from tfcluster.plans.plan import Interpreter
from tfcluster.spec import COORDINATED

if TYPE_CHECKING:
    from tfcluster.plans.plan import EnvVar
    from tfcluster.spec.model import ClusterSpec


def changed_settings(spec: ClusterSpec) -> dict[str, object]:
    """Return the settings that differ from their default; one that no task reads is reported."""
    name, of_tfcluster = spec.strategy.name, (default_strategy(spec), *COORDINATED)
    values: dict[str, Any] = {
        # A script creates the default strategy anyway; the others are for tfcluster itself.
        "strategy": None if name in of_tfcluster or "ps" in spec.cluster else name,
        "communication": spec.strategy.communication,
        "bytes_per_pack": spec.strategy.bytes_per_pack,
        "collective_timeout_s": spec.strategy.collective_timeout_s,
        "precision": spec.keras.precision,
        "steps_per_execution": spec.keras.steps_per_execution,
    }
    return {name: value for name, value in values.items() if value not in (None, "AUTO", 0)}


def settings_json(spec: ClusterSpec) -> str:
    """Return the value of ``TFCLUSTER_SETTINGS``, private to `tfcluster_workers`."""
    settings: dict[str, object] = {"strategy": strategy_name(spec), **changed_settings(spec)}
    if spec.keras.version != "auto":
        settings["keras_version"] = spec.keras.version
    if is_switched_off(spec):
        settings["keras_patch"] = "off"
    return json.dumps(settings | {"hooks": has_hooks(spec)})


def settings_in(env: Iterable[EnvVar]) -> dict[str, Any]:
    """Return the settings in the variables of a task."""
    text = next((var.value for var in env if var.name == "TFCLUSTER_SETTINGS"), "{}")
    return foreign_json.parse_json_object(text)


def asks_for_keras_3(env: Iterable[EnvVar]) -> bool:
    """Return whether the spec of a task with these variables has ``keras.version: 3``."""
    return settings_in(env).get("keras_version") == "3"


KerasPatch = Literal["on", "off", "no hooks"]
"""The state of the patch of Keras 3 in a task: on, off by `SWITCH`, or impossible without hooks."""


def keras_patch(env: Iterable[EnvVar], *, is_hooked: bool) -> KerasPatch:
    """Return whether Keras 3 is patched in a task with these variables."""
    if not is_hooked:
        return "no hooks"
    return "off" if settings_in(env).get("keras_patch") == "off" else "on"


TESTED: Final = ("3.3.0", "3.15.1")
"""First and last release of Keras that the patch was tested with, as in `keras3.release`."""

SWITCH: Final = "TFCLUSTER_KERAS3_SHIM"
"""The variable that leaves Keras 3 unpatched if `off`, the same as `keras3.SWITCH` of the workers.
"""

_KERAS_3_FAILS = (
    "Keras 3 fails under MultiWorkerMirroredStrategy with 2 or more workers (keras#20585)"
)


def with_inherited_switch(spec: ClusterSpec, node: str, context: PlanContext) -> ClusterSpec:
    """Return `spec` with `SWITCH` in `job.env`, if tasks of `node` inherit it."""
    env, inherited = spec.job.env, context.environ.get(SWITCH)
    is_inherited = node == LOCAL or SWITCH in env  # null: the launcher's value, on every node
    if inherited is None or env.get(SWITCH) is not None or not is_inherited:
        return spec
    job = spec.job.model_copy(update={"env": {**env, SWITCH: inherited}})
    return spec.model_copy(update={"job": job})


def has_keras_3(python: Interpreter | None) -> bool:
    """Return whether ``tf.keras`` of this Python is Keras 3, as since TensorFlow 2.16."""
    return python is not None and _numbers(python.packages.get("tensorflow", "")) >= (2, 16)


def is_patchable(version: str) -> bool:
    """Return whether this release of Keras is not older than those that can be patched.

    Whether a newer one than the tested ones can be patched is known in the task.
    """
    return _numbers(version) >= _numbers(TESTED[0])


def is_newer(version: str) -> bool:
    """Return whether this release of Keras is newer than the tested ones."""
    return _numbers(version) > _numbers(TESTED[1])


def is_patched(spec: ClusterSpec, python: Interpreter) -> bool:
    """Return whether the hooks will patch this Keras 3 for several workers."""
    return may_patch(spec) and is_patchable(python.packages.get("keras", ""))


def may_patch(spec: ClusterSpec) -> bool:
    """Return whether the tasks have hooks and `SWITCH` is not off."""
    return has_hooks(spec) and not is_switched_off(spec)


def is_switched_off(spec: ClusterSpec) -> bool:
    """Return whether `SWITCH` is off in `job.env`."""
    return str(spec.job.env.get(SWITCH) or "").lower() in {"off", "0", "false", "no"}


def cannot_be_patched(spec: ClusterSpec, python: Interpreter) -> bool:
    """Return whether `fit` would raise an error: a Keras 3 that the hooks cannot patch."""
    if "keras" not in python.packages or spec.keras.version == "2" or spec.job.kind == "plain":
        return False
    return fails_with_keras_3(spec) and may_patch(spec) and not is_patched(spec, python)


def fails_with_keras_3(spec: ClusterSpec) -> bool:
    """Return whether `fit` of Keras 3 fails: on two or more workers (keras#20585, open in 3.15)."""
    return strategy_name(spec) == "multi_worker_mirrored" and spec.trainer_count >= 2


def wants_keras_2(spec: ClusterSpec, python: Interpreter) -> bool:
    """Return whether the tasks should get Keras 2: on request, or because Keras 3 would fail."""
    if spec.job.kind == "plain" or spec.keras.version == "3":
        return False
    if spec.keras.version == "2" or strategy_name(spec) == "parameter_server":
        return True
    return fails_with_keras_3(spec) and not is_patched(spec, python)


def uses_legacy_keras(spec: ClusterSpec, python: Interpreter | None) -> bool:
    """Return whether to set TF_USE_LEGACY_KERAS; without tf-keras it would break ``tf.keras``."""
    if python is None or not has_keras_3(python) or not wants_keras_2(spec, python):
        return False
    return "tf-keras" in python.packages


def install_tf_keras(python: Interpreter) -> str:
    """Return the command that installs the tf-keras for this Python's TensorFlow."""
    minor = ".".join(python.packages["tensorflow"].split(".")[:2])
    return f"{python.path} -m pip install 'tf-keras~={minor}.0'"


def keras_notes(spec: ClusterSpec, python: Interpreter, *, imports_keras: bool) -> Iterator[str]:
    """Yield the sentences to show about the Keras of tasks that this Python runs."""
    fails = fails_with_keras_3(spec) and not is_patched(spec, python)
    if not wants_keras_2(spec, python):
        if fails and spec.keras.version == "3":
            reason = _why_not_patched(spec, python)
            yield f"{_KERAS_3_FAILS}, {reason}, but keras.version is 3"
        elif fails_with_keras_3(spec) and is_newer(python.packages.get("keras", "")):
            yield (
                f"Keras {python.packages['keras']} is newer than {TESTED[1]}, the newest that the"
                " patch for several workers was tested with: a task refuses it before its first"
                " step if the patch does not fit"
            )
        return
    if imports_keras and fails:
        # TF_USE_LEGACY_KERAS changes tf.keras only (tensorflow/python/util/lazy_loader.py).
        fix = "write `import tf_keras as keras`, or use tf.keras"
        yield f"{_KERAS_3_FAILS}, {_why_not_patched(spec, python)}: {fix}"
    elif version := python.packages.get("tf-keras"):
        yield f"{_why_keras_2(spec, python)}: tf_keras {version} is used"
    elif fails:
        fix = f"leave `hooks` on, or `{install_tf_keras(python)}`"
        yield f"{_KERAS_3_FAILS}, {_why_not_patched(spec, python)}: {fix}"


def _why_keras_2(spec: ClusterSpec, python: Interpreter) -> str:
    if spec.keras.version == "2":
        return "keras.version is 2"
    if fails_with_keras_3(spec):
        return f"{_KERAS_3_FAILS}, {_why_not_patched(spec, python)}"
    return "the cluster has ps tasks, for which `auto` is Keras 2"


def _why_not_patched(spec: ClusterSpec, python: Interpreter) -> str:
    if not has_hooks(spec):
        return "and without hooks it cannot be patched"
    if not may_patch(spec):
        return f"and {SWITCH} is off"
    return f"and {python.packages.get('keras', 'this release')} cannot be patched"


def _numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version; a release candidate counts as its release."""
    numbers: list[int] = []
    for part in version.split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)
