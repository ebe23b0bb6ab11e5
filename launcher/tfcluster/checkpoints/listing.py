"""One look at a directory: the only part of finding checkpoints that touches the disk."""

from __future__ import annotations

from pathlib import Path

from tfcluster.agent.outgoing import walk
from tfcluster.checkpoints.completeness import Entry


def scan(directory: Path) -> tuple[Entry, ...]:
    """Every file and folder below `directory`; links are never followed, so never listed.

    What vanishes while being looked at is left out; a directory that is not there is empty. The
    agents of other machines list theirs in the same way.
    """
    return tuple(Entry(*found) for found in walk(str(directory), ""))
