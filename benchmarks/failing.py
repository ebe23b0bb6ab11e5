"""One task of a gang fails: the time until the others have ended, and until all run again."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from benchmarks.harness import Claim, Metric, Quantity, Taken
from benchmarks.launchers import LAUNCHERS, Launcher, stubs
from benchmarks.sandbox import HANG_S, Sandbox, sandbox
from benchmarks.stamps import Stamp, all_stamps, stamps

TASKS = 4


def _started(box: Sandbox) -> list[Stamp]:
    box.until(lambda: len(stamps(box.folder)) == TASKS, "the first attempt of all tasks")
    return stamps(box.folder)


def _failed_at(box: Sandbox) -> float:
    return float((box.folder / "failed").read_text())


def _fail_fast(mode: str, launcher: Launcher) -> Taken:
    """Measure from the failure to the last survivor's end, and to the command's end."""
    with sandbox() as box:
        process = box.start(launcher.command(box.folder, stubs(TASKS, mode)))
        ends = _ends([one.pid for one in _started(box)] + [process.pid], box)
        box.until((box.folder / "failed").exists, "the failure")
        failed = _failed_at(box)
        *survivors, _ = ends.values()
        return {"survivors gone": max(survivors) - failed, "prompt": ends[process.pid] - failed}


def _ends(pids: Sequence[int], box: Sandbox) -> Mapping[int, float]:
    """Return when each process ended; the task may fail once all processes are watched."""
    ends: dict[int, float] = dict.fromkeys(pids, 0.0)
    with ExitStack() as stack:
        poll, of = select.poll(), {}
        for pid in pids:
            fd = os.pidfd_open(pid)
            stack.callback(os.close, fd)
            poll.register(fd, select.POLLIN)
            of[fd] = pid
        (box.folder / "go").touch()
        deadline = time.monotonic() + HANG_S
        box.until(
            lambda: _look(poll, of, ends) or time.monotonic() > deadline, "the end of all processes"
        )
    return ends


def _look(poll: select.poll, of: dict[int, int], ends: dict[int, float]) -> bool:
    for fd, _ in poll.poll(1000):
        ends[of.pop(fd)] = time.monotonic()
        poll.unregister(fd)
    return not of


def _restart(launcher: Launcher) -> Taken:
    """Measure from the crash to the first instruction of attempt 2's first and last worker."""
    with sandbox() as box:
        process = box.start(launcher.command(box.folder, stubs(TASKS, "crash", restarts=1)))
        _started(box)
        (box.folder / "go").touch()
        box.end(process)
        again = [one.at for one in all_stamps(box.folder, TASKS, attempt=1)]
        crashed = _failed_at(box)
        return {"last worker": max(again) - crashed, "first worker": min(again) - crashed}


def fail_fast(*, quick: bool) -> Metric:
    """Return the fail-fast metric.

    Only tfcluster has an arm that ignores SIGTERM: the peers' grace period is fixed at 30 s.
    """
    names = {"tfcluster": "tfcluster", "shell": "bare loop"}
    names |= {name: name for name in ("torchrun", "honcho", "accelerate")}
    arms = {
        name: LAUNCHERS[launcher].arm(partial(_fail_fast, "fail"))
        for name, launcher in names.items()
    }
    if not quick:
        swallow = LAUNCHERS["tfcluster"].arm(partial(_fail_fast, "swallow"))
        arms["tfcluster, SIGTERM ignored"] = swallow
    return Metric(
        title=f"Fail-fast: one of {TASKS} stub workers exits with 3",
        quantities={"survivors gone": Quantity("s"), "prompt": Quantity("s")},
        arms=arms,
        claims=[
            Claim(f"{quantity}, tfcluster : {name}", quantity, "tfcluster", name)
            for quantity in ("survivors gone", "prompt")
            for name in ("torchrun", "honcho")
        ],
        note="shell: a loop that waits for the first child to fail and kills the others.",
    )


def restart(*, quick: bool) -> Metric:
    """Return the restart metric; `backoff_s` is 0, and the state is restored first."""
    names = {"tfcluster": "tfcluster", "shell": "bare loop", "torchrun": "torchrun"}
    return Metric(
        title=f"Restart: from a crash to the next attempt's first instruction, {TASKS} workers",
        quantities={"last worker": Quantity("s"), "first worker": Quantity("s")},
        arms={name: LAUNCHERS[launcher].arm(_restart) for name, launcher in names.items()},
        claims=[
            Claim("tfcluster : torchrun", "last worker", "tfcluster", "torchrun", 1.0),
            Claim("tfcluster : shell", "last worker", "tfcluster", "shell"),
            Claim("tfcluster", "last worker", "tfcluster", at_most=0.10, stretch=0.05),
        ],
        note="shell: a loop that waits for the first child to fail, kills the others and starts "
        "all again; torchrun with --max-restarts=1.",
    )
