"""The processes that remain when the launcher is killed with SIGKILL."""

from __future__ import annotations

import time
from functools import partial

import psutil
from benchmarks.harness import Claim, Metric, Quantity, Taken
from benchmarks.launchers import LAUNCHERS, Launcher, stubs
from benchmarks.sandbox import Sandbox, lives, sandbox
from benchmarks.stamps import stamps

LOOKS_S = (1.0, 5.0)


def _orphans(tasks: int, launcher: Launcher) -> Taken:
    with sandbox() as box:
        process = box.start(launcher.command(box.folder, stubs(tasks, "sleep")))
        box.until(lambda: len(stamps(box.folder)) == tasks, "all tasks")
        time.sleep(0.5)  # let the launcher finish its start
        pids = [one.pid for one in stamps(box.folder)]
        process.kill()
        process.wait()
        killed, taken = time.monotonic(), {}
        for look in LOOKS_S:
            if box.processes():  # else nothing is left that could start a process
                time.sleep(max(0.0, killed + look - time.monotonic()))
            taken[f"tasks after {look:.0f} s"] = float(sum(map(lives, pids)))
        taken["processes after 5 s"] = float(len(_living(box)))
        return taken


def _living(box: Sandbox) -> list[psutil.Process]:
    return [process for process in box.processes() if lives(process.pid)]


def orphans(*, quick: bool) -> Metric:
    """Return the metric for 8 sleeping tasks."""
    tasks = 4 if quick else 8
    quantities = [*(f"tasks after {look:.0f} s" for look in LOOKS_S), "processes after 5 s"]
    arms = {
        name: LAUNCHERS[name].arm(partial(_orphans, tasks), most_runs=most)
        for name, most in {"tfcluster": None, "shell": 3, "torchrun": 3, "honcho": 3}.items()
    }
    return Metric(
        title=f"Orphans: `kill -9` of the launcher of {tasks} sleeping tasks",
        quantities={name: Quantity("left", "worst") for name in quantities},
        arms=arms,
        claims=[
            Claim(f"tfcluster, {name}", name, "tfcluster", at_most=0, stretch=0)
            for name in quantities
        ],
    )
