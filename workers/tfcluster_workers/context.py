"""This task's identity, cluster, folders and settings, read from the environment.

Without a launcher, the defaults are those of a single worker.

    from tfcluster_workers import context

    this_task = context.current()
    if this_task.is_chief: ...
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Context:
    """One task of one attempt."""

    job: str = "worker"
    """`chief`, `worker`, `ps` or `evaluator`."""
    index: int = 0
    attempt: int = 1
    run_id: str | None = None
    cluster: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    checkpoint_dir: Path = Path("checkpoints")
    """The folder to save into and to resume from. Each task has its own."""
    tensorboard_dir: Path | None = None
    restored_step: int | None = None
    """The step of the checkpoint that was put into `checkpoint_dir`; None on a fresh start."""

    @property
    def task(self) -> str:
        return f"{self.job}:{self.index}"

    @property
    def num_workers(self) -> int:
        """The number of tasks that train together; 1 without a cluster."""
        return max(1, len(self.cluster.get("chief", ())) + len(self.cluster.get("worker", ())))

    @property
    def is_chief(self) -> bool:
        """True for the task whose checkpoints count (TensorFlow's multi_worker_util.is_chief)."""
        if self.job == "worker":
            return self.index == 0 and not self.cluster.get("chief")
        return self.job in {"chief", "evaluator"}

    @property
    def save_dir(self) -> Path:
        """The folder this task writes into: a subfolder of its own, unless it is the chief.

        Every worker must save, and several tasks may have been given the same folder.
        """
        if self.is_chief:
            return self.checkpoint_dir
        return self.checkpoint_dir / f"workertemp_{self.job}_{self.index}"


def current(environ: Mapping[str, str] | None = None) -> Context:
    """Return the context of this process, or of `environ`."""
    env = os.environ if environ is None else environ
    config = json.loads(env.get("TF_CONFIG") or "{}")
    task = config.get("task", {})
    cluster = {job: tuple(hosts) for job, hosts in config.get("cluster", {}).items()}
    tensorboard, restored = env.get("TFCLUSTER_TENSORBOARD_DIR"), env.get("TFCLUSTER_RESTORED_STEP")
    return Context(
        job=str(task.get("type", "worker")),
        index=int(task.get("index", 0)),
        attempt=int(env.get("TFCLUSTER_ATTEMPT", "1")),
        run_id=env.get("TFCLUSTER_RUN_ID"),
        cluster=cluster,
        checkpoint_dir=Path(env.get("TFCLUSTER_CHECKPOINT_DIR") or "checkpoints"),
        tensorboard_dir=Path(tensorboard) if tensorboard else None,
        restored_step=int(restored) if restored else None,
    )


def is_evaluator() -> bool:
    """Return whether this task only evaluates, even if its script has changed TF_CONFIG."""
    task = os.environ.get("TFCLUSTER_TASK") or current().task
    return task.startswith("evaluator")


def setting(name: str, default: Any = None) -> Any:
    """Return the spec's value of `name`, or `default`; a value that is read is reported as used."""
    from tfcluster_workers import reporting

    settings = json.loads(os.environ.get("TFCLUSTER_SETTINGS") or "{}")
    if settings.get(name) is None:
        return default
    reporting.setting_read(name)
    return settings[name]
