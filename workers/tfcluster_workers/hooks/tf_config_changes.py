"""Remembers where a script changes TF_CONFIG, so that an error message can name the line."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # see boot
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

NAME = "TF_CONFIG"
ASSIGNED = "TFCLUSTER_TF_CONFIG"
"""The variable by which the task's children know what tfcluster has assigned to the task."""

assigned = ""
"""The value that tfcluster set; empty if it set none or nothing is watched."""
_pid = 0
"""The process that watches."""
_last: tuple[str, int, str] | None = None


def watch() -> None:
    """Remember from now on where this task sets or removes `os.environ["TF_CONFIG"]`."""
    os.environ[ASSIGNED] = os.environ.get(NAME, "")
    watch_in_child()


def watch_in_child() -> None:
    """Do as `watch` in a child of the task, which may have been given another TF_CONFIG."""
    global assigned, _pid
    assigned, _pid = os.environ.get(ASSIGNED, ""), os.getpid()
    if not assigned:
        return
    kind: Any = type(os.environ)
    set_item, delete_item = kind.__setitem__, kind.__delitem__

    def __setitem__(self: Any, key: Any, value: Any) -> None:
        set_item(self, key, value)
        if key == NAME:
            _remember(sys._getframe(1), "sets")

    def __delitem__(self: Any, key: Any) -> None:
        delete_item(self, key)
        if key == NAME:
            _remember(sys._getframe(1), "removes")

    kind.__setitem__, kind.__delitem__ = __setitem__, __delitem__


def is_task_process() -> bool:
    """Return whether this process is the task itself, in a cluster that tfcluster made.

    A process that the task forks is not: it may form a cluster of its own.
    """
    return bool(assigned) and os.getpid() == _pid


def last_change() -> tuple[str, int, str] | None:
    """Return file, line and `sets` or `removes` of the newest change; None without a change."""
    return _last


def _remember(frame: FrameType | None, action: str) -> None:
    """Remember the last line of the user's code in the stack, else the calling line."""
    global _last
    from tfcluster_workers import failures

    stack = []
    while frame is not None:
        stack.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    file, line = next((place for place in stack if not failures.is_foreign(place[0])), stack[0])
    _last = (file, line, action)
