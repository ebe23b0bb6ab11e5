"""Remembers where a script changes TF_CONFIG, so that what comes of it can be explained later."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # see boot
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

NAME = "TF_CONFIG"

given = ""
"""The value that tfcluster set; empty where it set none, or nobody watches."""
_pid = 0
_last: tuple[str, int, str] | None = None


def watch() -> None:
    """Remember from now on where `os.environ` gets another TF_CONFIG, or loses it."""
    global given, _pid
    given, _pid = os.environ.get(NAME, ""), os.getpid()
    if not given:
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


def is_this_task() -> bool:
    """Whether this process is the task itself, in a cluster that tfcluster made.

    What a task forks is not: it may well form a cluster of its own.
    """
    return bool(given) and os.getpid() == _pid


def last_change() -> tuple[str, int, str] | None:
    """File and line of the newest change, and `sets` or `removes`; None where there was none."""
    return _last


def _remember(frame: FrameType | None, deed: str) -> None:
    """Note the line of the user's own that led here, else the one that called."""
    global _last
    from tfcluster_workers import failures

    stack = []
    while frame is not None:
        stack.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    file, line = next((one for one in stack if not failures.is_foreign(one[0])), stack[0])
    _last = (file, line, deed)
