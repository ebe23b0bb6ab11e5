"""Hand results over to a folder of the user's: `checkpoints.to`, `tfcluster checkpoints --copy`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tfcluster.checkpoints import proto
from tfcluster.checkpoints.completeness import Entry, Kind
from tfcluster.checkpoints.copying import Stopped, never, replace_verified
from tfcluster.checkpoints.listing import scan
from tfcluster.checkpoints.store import Gathered


def deliver(
    gathered: Gathered | None, outputs: Path | None, to: Path, *, stopped: Stopped = never
) -> tuple[Path, ...]:
    """Copy one checkpoint and the gathered outputs into `to`; returns the files written.

    Files there keep their names from the run, a ``checkpoint`` file names the prefix, and
    everything else in the folder is left alone. Raises CancelledError, SourceChangedError,
    OSError.
    """
    written: list[Path] = []
    if gathered:
        for entry in gathered.checkpoint.all_files:
            target = to / gathered.file(entry).relative_to(gathered.folder)
            replace_verified(gathered.file(entry), target, entry, stopped=stopped)
            written.append(target)
        if gathered.kind in (Kind.TF_CHECKPOINT, Kind.ESTIMATOR):
            saved = gathered.checkpoint.saved_ns / 1e9
            proto.write(to, [proto.Prefix(gathered.path.name, saved)])
            written.append(to / "checkpoint")
    for entry in _files(outputs):
        assert outputs is not None
        replace_verified(outputs / entry.path, to / entry.path, entry, stopped=stopped)
        written.append(to / entry.path)
    return tuple(written)


def _files(folder: Path | None) -> Sequence[Entry]:
    return [e for e in scan(folder) if not e.path.endswith("/")] if folder else ()
