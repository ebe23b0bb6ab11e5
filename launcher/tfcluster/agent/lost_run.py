"""Ends what a run whose coordinator is gone has left on this node: its agent and its tasks.

The agent would end its tasks itself, but only when its lease is over, which may be an hour.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time

from tfcluster.agent import fence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KILL_S = 5.0


def end(config: dict[str, Any]) -> dict[str, Any]:
    """Kill the agent that is ``former`` (`fence.identity`), and all that carries the run's id.

    Returns what was there (``ended``: agent, worker:0, …), what was killed and lives on
    (``stays``), whether nothing of the run can live here any more (``is_proved``), and the folder
    with what it has saved here (``folder``; null: there is none).
    """
    tasks = _tasks(config["run_id"])
    agent = ["agent"] if fence.have_ended(config["former"]) is False else []
    has_ended = fence.end(config["former"])
    stays = _kill_tasks(config["run_id"]) + (agent if has_ended is False else [])
    folder = os.path.join(config["cache"], "nodes", config["run_id"])
    return {
        "ended": agent + sorted(set(tasks.values())),
        "stays": stays,
        "is_proved": has_ended is True and not stays,
        "folder": folder if os.path.isdir(folder) else None,
    }


def _kill_tasks(run_id: str) -> list[str]:
    """Those that live on."""
    deadline = time.monotonic() + _KILL_S
    while tasks := _tasks(run_id):
        if time.monotonic() > deadline:
            break
        for pid in tasks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return sorted(set(tasks.values()))


def _tasks(run_id: str) -> dict[int, str]:
    """Living processes of this user that a task or `prepare` of the run has started."""
    mark, found = f"TFCLUSTER_RUN_ID={run_id}".encode(), {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            if os.stat(f"/proc/{pid}").st_uid != os.getuid():
                continue
            with open(f"/proc/{pid}/environ", "rb") as file:
                environ = file.read().split(b"\0")  # empty for a zombie
        except OSError:
            continue
        if mark in environ:
            named = [word for word in environ if word.startswith(b"TFCLUSTER_TASK=")]
            name = named[0].decode(errors="replace")[15:] if named else "prepare"
            found[pid] = re.sub(r"[^A-Za-z0-9_:.-]", "_", name)[:80] or "_"
    return found
