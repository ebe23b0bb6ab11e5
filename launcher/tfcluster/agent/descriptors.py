"""How many files may be open at once: for us as many as can be, for tasks as many as before us.

A thousand logs, or the pipes of two hundred tasks, are more than the 1,024 that most systems begin
with. Tasks must not get more: a program that uses select() breaks with descriptors above that.
"""

from __future__ import annotations

import contextlib
import resource

_MOST = 1 << 16
"""Some containers allow a thousand million, and old programs close every number there could be."""
_found: int | None = None


def raise_limit(found: int | None = None) -> int:
    """Let this process open more; the soft limit that it began with, or that `found` says."""
    global _found
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _found is None:
        _found = soft if found is None else found
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return _found


def give_back() -> None:
    """In a fork that is to become somebody else's program."""
    if _found is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (_found, hard))
