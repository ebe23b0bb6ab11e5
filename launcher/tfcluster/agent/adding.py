"""Files that come into a folder that a task reads: each whole at once, in their order."""

from __future__ import annotations

import contextlib
import os

from tfcluster.agent.announced import BadTree
from tfcluster.agent.private import make_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


def add(
    into: str,
    files: Iterable[dict[str, Any]],
    removed: Iterable[str],
    put: Callable[[dict[str, Any], str], None],
) -> None:
    """Put each of `files` in its place below `into`, then take away what is `removed`.

    What else is there stays. `put` makes a file under a name that is free. Raises OSError, BadTree
    for a place that a link of the task's leads out of the folder, and what `put` raises.
    """
    make_folders(into)
    for file in files:
        target = _place(into, file["path"])
        beside = f"{target}.{os.urandom(6).hex()}.incoming"
        try:
            put(file, beside)
            os.replace(beside, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
    for path in removed:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_place(into, path))


def _place(into: str, path: str) -> str:
    target = os.path.join(into, path)
    folder = os.path.dirname(target)
    root = os.path.realpath(into)
    if os.path.commonpath([root, os.path.realpath(folder)]) != root:
        raise BadTree(f"{path!r} lies behind a link that leads out of the folder")
    make_folders(folder)
    return target
