"""The strategy and keras settings: what the tasks are told, and what some task must read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tfcluster.plan.command import programs

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
