"""Environment variables as the spec names them: which names are possible, and which are ours."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from tfcluster.spec.fields import shorten, wrong

OURS = frozenset(
    {
        "TF_CONFIG", "TFCLUSTER_RUN_ID", "TFCLUSTER_TASK", "TFCLUSTER_ATTEMPT",
        "TFCLUSTER_CHECKPOINT_DIR", "TFCLUSTER_TENSORBOARD_DIR", "TFCLUSTER_RESTORED_STEP",
        "TFCLUSTER_EVENTS_FD", "TFCLUSTER_SETTINGS", "TFCLUSTER_TUNER_DIR",
    }
)  # fmt: skip
"""Set by tfcluster for each task, above all that a spec could say."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)


def _is_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        cure = "write letters, digits and _ only, for example WANDB_API_KEY"
        raise wrong(f"{shorten(name)} is not a variable's name", cure)
    return name


def _is_free(name: str) -> str:
    if name in OURS:
        raise wrong(f"{name} is set by tfcluster for each task", "leave it out")
    return name


Name = Annotated[str, AfterValidator(_is_name), AfterValidator(_is_free)]
Env = dict[Name, str | None]
"""null = take the value of the launcher's own environment."""
