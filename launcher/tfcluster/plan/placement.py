"""On which node each address lies, and through which backend that node is reached."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass

from tfcluster.plan.surroundings import LOCAL


@dataclass(frozen=True, slots=True)
class Place:
    """A node by name, and the backend that reaches it."""

    node: str
    backend: str


DOCKER = "docker"
"""The backend whose nodes are made for one task each, and named after it."""


def place(host: str, *, backend: str, own: Collection[str]) -> Place:
    """`backend` as the spec says it (``auto`` …); `own`: this machine's addresses and names."""
    if backend == "local" or (backend == "auto" and is_here(host, own)):
        return Place(LOCAL, "local")
    return Place(host, "ssh" if backend == "auto" else backend)


def is_here(host: str, own: Collection[str]) -> bool:
    """Loopback, or one of this machine's own interfaces."""
    bare = host.strip("[]")
    return bare in own or is_loopback(bare)


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
