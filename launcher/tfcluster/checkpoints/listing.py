"""One look at a directory: the only part of finding checkpoints that touches the disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tfcluster.agent import budgets
from tfcluster.agent.outgoing import walk
from tfcluster.checkpoints.completeness import Entry
from tfcluster.checkpoints.copying import Stopped, go_on, never


def scan(
    directory: Path, *, most: int | None = None, stopped: Stopped = never
) -> tuple[Entry, ...]:
    """Every file and folder below `directory`; links are never followed, so never listed.

    What vanishes while being looked at is left out; a directory that is not there is empty. The
    agents of other machines list theirs in the same way. Raises OSError, also where there are more
    than `most`, and CancelledError.
    """
    found = []
    names = walk(str(directory), "", partial(go_on, stopped))
    for number, (path, size, mtime_ns) in enumerate(names, 1):
        if most is not None and number > most:
            raise OSError(budgets.too_many_files(str(directory), most))
        found.append(Entry(path, size, mtime_ns))
    return tuple(found)
