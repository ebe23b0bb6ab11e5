"""The places where tasks can run, by the name a user writes; each is imported when it is used."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tfcluster.backends.base import Backend
from tfcluster.errors import UsageError

_MODULES = {"local": ("tfcluster.backends.local", "LocalBackend")}


def get(name: str, *, runtime_dir: Path) -> Backend:
    """The backend called `name`; `runtime_dir` is where it puts sockets and port locks.

    Raises UsageError for a name nobody knows.
    """
    if name not in _MODULES:
        known = ", ".join(sorted(_MODULES))
        raise UsageError(f"there is no backend {name!r}", cure=f"write one of: {known}")
    module, backend = _MODULES[name]
    made: Backend = getattr(import_module(module), backend)(runtime_dir)
    return made
