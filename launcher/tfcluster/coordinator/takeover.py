"""The end of a coordinator whose run another one has taken over.

A scheduler that hears nothing of a node starts the job again elsewhere. The coordinator on that
node may only have been cut off or stopped: when it goes on, everything that it knows is outdated,
and what it does hits its successor, down to the job, whose id is the same. So it does nothing more.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from dataclasses import asdict
from typing import Any, Final

from tfcluster.agent.processes import descendants
from tfcluster.rundir import heartbeat, registry
from tfcluster.rundir.paths import RunPaths

EXIT_CODE: Final = 75
"""The exit code of a coordinator whose run goes on in another process (EX_TEMPFAIL)."""


@functools.cache
def _identity(pid: int) -> dict[str, Any]:
    """Return who this process is, as it was when it was first asked: a host may change its name."""
    return asdict(registry.this_process())


def claim(paths: RunPaths) -> None:
    """Make this process the run's coordinator, instead of any before."""
    heartbeat.claim(paths, _identity(os.getpid()))


def leave_if_replaced(paths: RunPaths) -> None:
    """End this process at once if the run has another coordinator.

    Its agents end with it, because it has their connections; those of the successor are others.
    """
    if not heartbeat.is_held_by(paths, _identity(os.getpid())):
        said = f"tfcluster: another coordinator has taken {paths.run_id} over, this one ends\n"
        os.write(2, said.encode(errors="replace"))
        for pid in descendants():  # an `srun` that goes on, too, may end steps of its successor
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os._exit(EXIT_CODE)
