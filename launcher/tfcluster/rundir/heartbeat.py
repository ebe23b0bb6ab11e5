"""The heartbeat of a run's coordinator: a file in the run folder that it touches while it lives.

A view on another machine cannot look for the coordinator's process. It compares the time of the
file with that of a file which it makes itself: both are the file server's, so the clocks of the
machines need not agree. The file also names the coordinator. One that was cut off or stopped, and
whose job has started again elsewhere meanwhile, finds another name there, and has to end.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any, Final

from tfcluster.agent import foreign_json
from tfcluster.rundir.paths import RunPaths

Coordinator = Mapping[str, Any]
"""The fields of a `registry.ProcessIdentity`."""
BEAT_S: Final = 5.0
SILENT_S: Final = 60.0
"""The age of a heartbeat from which on nobody hears of the coordinator: longer than a file server
may take to answer, and than attributes of files are cached."""


def claim(paths: RunPaths, coordinator: Coordinator) -> None:
    """Name `coordinator` as the one that has the run, instead of any before."""
    fresh = paths.heartbeat.with_name(f"{paths.heartbeat.name}.{coordinator['pid']}")
    try:
        fresh.write_text(json.dumps(dict(coordinator)))
        fresh.replace(paths.heartbeat)
    except OSError:  # a full disk: the run goes on without, and not under its predecessor's name
        for path in (fresh, paths.heartbeat):
            with contextlib.suppress(OSError):
                path.unlink()


def beat(paths: RunPaths) -> None:
    """Touch the heartbeat, with the file server's time."""
    with contextlib.suppress(OSError):
        os.utime(paths.heartbeat)


def is_held_by(paths: RunPaths, coordinator: Coordinator) -> bool:
    """Return whether the run is `coordinator`'s; False only if it is known to be another's."""
    try:
        return foreign_json.read_json_object(paths.heartbeat) == dict(coordinator)
    except (OSError, ValueError):
        return True


def host_of(paths: RunPaths) -> str | None:
    """Return the host of the coordinator that has the run; None without one."""
    try:
        return str(foreign_json.read_json_object(paths.heartbeat)["host"])
    except (OSError, ValueError, KeyError):
        return None


def silent_s(paths: RunPaths) -> float | None:
    """Return the seconds since the last beat; None if there is none, or nobody can tell."""
    look = paths.heartbeat.with_name(f"{paths.heartbeat.name}.look-{os.getpid()}")
    try:
        with paths.heartbeat.open("rb") as file:  # opened: NFS asks the server for the time
            beat_at = os.fstat(file.fileno()).st_mtime
        with contextlib.suppress(FileNotFoundError):
            look.unlink()
        with look.open("xb") as file:
            now = os.fstat(file.fileno()).st_mtime
        look.unlink()
    except OSError:
        return None
    return now - beat_at
