"""What the command line wants of a run besides its spec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfcluster.run.chaos import Fault


@dataclass(frozen=True, slots=True)
class Wishes:
    """Steps to leave out, faults to rehearse."""

    looks_first: bool = True
    """At the nodes, before anything is started on them; not with ``--no-preflight``."""
    prepares: bool = True
    """Not with ``--no-prepare``."""
    gathers: bool = True
    """Not with ``--no-gather``."""
    faults: Sequence[Fault] = ()
    """Of ``--chaos``."""
