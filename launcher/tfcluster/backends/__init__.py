"""Backends: how nodes are reached, or made, to run tasks on; `get` returns one by its name.

A backend's module is imported when it is used.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tfcluster.backends.base import Backend
from tfcluster.errors import SetupError

_MODULES = {
    "local": ("tfcluster.backends.local", "LocalBackend"),
    "docker": ("tfcluster.backends.docker.backend", "DockerBackend"),
    "ssh": ("tfcluster.backends.ssh", "SshBackend"),
}


def get(name: str, *, runtime_dir: Path) -> Backend:
    """Return the backend called `name`; `runtime_dir` is where it puts sockets and port locks.

    Raises SetupError for a backend that this version does not have.
    """
    if name not in _MODULES:
        raise SetupError(
            f"this version of tfcluster has no backend {name}",
            fix=f"use one of {', '.join(sorted(_MODULES))}",
        )
    module, backend = _MODULES[name]
    created: Backend = getattr(import_module(module), backend)(runtime_dir)
    return created
