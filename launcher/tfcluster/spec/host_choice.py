"""What the command line says of hosts, as it was typed; read by `tfcluster.spec.load`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostChoice:
    """Which hosts to take in the place of the spec's, and which of them to use or leave out."""

    hosts: str | None = None
    """``--hosts``: ``gpu1,anna@gpu2:2``, or the name of a file."""
    hostfile: str | None = None
    """``--hostfile``: the name of a file."""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    workers: int | None = None
    """``run -n``: so many of the slots; None: all."""


NO_CHOICE = HostChoice()
