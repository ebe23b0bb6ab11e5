"""Temporary folders beside the files that this task saves, which tfcluster never gathers."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid

from tfcluster_workers.hooks import one_writer

_checked: set[str] = set()
"""Folders in which this process has looked for what an earlier attempt left."""


def beside(path: str) -> str:
    """Return a new name for a folder beside `path`, such as `…/workertemp_worker_1_k7f3_0b2e91c4`.

    Names are unique: threads of one task, and two runs, may save into one folder.
    """
    folder = os.path.dirname(path.rstrip("/"))
    _remove_leftovers(folder)
    return os.path.join(folder, _own_names() + uuid.uuid4().hex[:8])


def make_beside(path: str) -> str | None:
    """Make a new folder beside `path`, which is local; return None if that is not possible."""
    folder = beside(path)
    try:
        os.mkdir(folder)
    except OSError:
        return None
    return folder


def _own_names() -> str:
    """Return how the names of this task's folders in this run begin."""
    task = os.environ.get("TFCLUSTER_TASK", "task").replace(":", "_")
    return f"{one_writer.TEMPORARY}{task}_{os.environ.get('TFCLUSTER_RUN_ID', 'run')[-4:]}_"


def _remove_leftovers(folder: str) -> None:
    """Remove, once per folder, what earlier attempts of this task left when they were killed."""
    if folder in _checked or os.environ.get("TFCLUSTER_ATTEMPT", "1") == "1":
        return
    _checked.add(folder)
    with contextlib.suppress(OSError):
        for name in os.listdir(folder or "."):
            if name.startswith(_own_names()):
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
