"""Forked children of a coordinator's process close their copies of its connections.

A program that calls `tfcluster.start` may fork, as `multiprocessing` does. A copy of a connection
in a child would hide the coordinator's end from agents, the sweeper and clients.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Protocol, TypeVar


class _Closable(Protocol):
    def close(self) -> object: ...


T = TypeVar("T", bound=_Closable)
_held: weakref.WeakSet[_Closable] = weakref.WeakSet()


def keep_from_children(opened: T) -> T:
    """Return `opened`, a socket or an unbuffered pipe, which forked children will close."""
    _held.add(opened)
    return opened


def _close_all() -> None:
    """Close the child's copies: not through asyncio, whose loop is the parent's."""
    for opened in list(_held):
        with contextlib.suppress(OSError):
            opened.close()
    _held.clear()


os.register_at_fork(after_in_child=_close_all)
