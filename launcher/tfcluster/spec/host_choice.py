"""The host options of the command line, unparsed; light enough for start-up, read by `load`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostChoice:
    """Hosts that replace the spec's, and the hosts to include or exclude."""

    hosts: str | None = None
    """``--hosts``: ``gpu1,anna@gpu2:2``, or a file name."""
    hostfile: str | None = None
    """``--hostfile``: a file name."""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    workers: int | None = None
    """``run -n``: the number of slots to use; None: all."""


NO_CHOICE = HostChoice()
