"""The state that an attempt starts from: its newest checkpoint, and its files under the names that
the chief gave them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from posixpath import basename

from tfcluster.checkpoints import copying
from tfcluster.checkpoints.completeness import (
    Checkpoint,
    CheckpointKind,
    Newest,
    find,
    oldest_first,
)
from tfcluster.checkpoints.copying import scan
from tfcluster.checkpoints.store import Gathered


def newest_of(state: Iterable[Gathered]) -> Newest:
    """Return the newest checkpoint with a known step, else the newest; a backup only if alone.

    `state`: oldest first.
    """
    best = max(
        reversed([*state]),
        key=lambda g: (g.step is not None, g.kind is not CheckpointKind.BACKUP),
        default=None,
    )
    return Newest(best.step, best.checkpoint.name) if best else Newest()


def fill(folder: Path, state: Sequence[Gathered]) -> None:
    """Copy `state` into `folder` under the chief's file names, with its ``checkpoint`` files."""
    for gathered in state:
        for entry in gathered.checkpoint.all_files:
            gathered.copy(entry, folder / entry.path)
    name_checkpoints(folder, state)


def name_checkpoints(folder: Path, gathered: Iterable[Gathered]) -> None:
    """Write a ``checkpoint`` file into each folder below `folder` that holds a prefix."""
    by_folder: dict[str, list[copying.Prefix]] = defaultdict(list)
    for one in oldest_first(gathered, lambda one: one.age):
        for entry in one.checkpoint.files:
            prefix = entry.path.removesuffix(".index")
            if one.kind is not CheckpointKind.SAVED_MODEL and prefix != entry.path:
                inside, _, name = prefix.rpartition("/")
                by_folder[inside].append(copying.Prefix(name, one.saved_ns / 1e9))
    for inside, prefixes in by_folder.items():
        copying.write(folder / inside, prefixes)


def newest_in(shared: str | None, reported: Mapping[str, int]) -> Newest:
    """Return the newest complete checkpoint in storage that all tasks share.

    `reported`: path → step as the chief reported them, oldest first. A reported step overrides
    the one in the name; reports are the only source if the storage is not mounted here. Raises
    OSError.
    """
    if shared is None or not os.path.isdir(shared):
        return newest_reported(reported)

    def step(checkpoint: Checkpoint) -> int | None:
        return reported.get(str(Path(shared) / checkpoint.path), checkpoint.step)

    found = find(scan(Path(shared)), None)
    ordered = oldest_first(found, lambda one: one.age(step=step(one), saved_ns=one.saved_ns))
    return Newest(step(ordered[-1]), ordered[-1].name) if ordered else Newest()


def newest_reported(reported: Mapping[str, int]) -> Newest:
    """Return the checkpoint that the chief reported last."""
    path, step = [*reported.items()][-1] if reported else ("", None)
    return Newest(step, basename(path) or None)
