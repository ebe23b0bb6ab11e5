"""The places where tasks can run, by the name a user writes; each is imported when it is used."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tfcluster.backends.base import Backend
from tfcluster.errors import SurroundingsError

_MODULES = {
    "local": ("tfcluster.backends.local", "LocalBackend"),
    "docker": ("tfcluster.backends.docker.backend", "DockerBackend"),
    "ssh": ("tfcluster.backends.ssh", "SshBackend"),
}


def get(name: str, *, runtime_dir: Path) -> Backend:
    """The backend called `name`; `runtime_dir` is where it puts sockets and port locks.

    Raises SurroundingsError for a backend this version does not have.
    """
    if name not in _MODULES:
        raise SurroundingsError(
            f"this version of tfcluster does not start tasks through {name}",
            fix=f"there are {', '.join(sorted(_MODULES))}",
        )
    module, backend = _MODULES[name]
    made: Backend = getattr(import_module(module), backend)(runtime_dir)
    return made
