"""TensorFlow's ``checkpoint`` file, the text proto that `tf.train.latest_checkpoint` reads.

Only relative names are written, so that a folder can be moved or copied anywhere
(tensorflow/python/checkpoint/checkpoint_management.py joins them with the file's own folder).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfcluster.checkpoints.copying import write_atomically


@dataclass(frozen=True, slots=True)
class Prefix:
    """A checkpoint that is there: its path relative to the folder, seconds since 1970."""

    path: str
    saved: float


def text(prefixes: Sequence[Prefix]) -> str:
    """The file for these checkpoints, oldest first; the last one is the latest."""
    quoted = [json.dumps(prefix.path, ensure_ascii=False) for prefix in prefixes]
    return "".join(
        (
            f"model_checkpoint_path: {quoted[-1]}\n",
            *(f"all_model_checkpoint_paths: {path}\n" for path in quoted),
            *(f"all_model_checkpoint_timestamps: {prefix.saved:.6f}\n" for prefix in prefixes),
        )
    )


def write(folder: Path, prefixes: Sequence[Prefix]) -> None:
    """Write ``checkpoint`` into `folder`, or remove it when there is nothing to name."""
    path = folder / "checkpoint"
    if prefixes:
        write_atomically(path, text(prefixes))
    else:
        path.unlink(missing_ok=True)
