"""The time from Enter, and from a crash, to the first training step; memory shared by workers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import psutil
from benchmarks.harness import Claim, Failed, Metric, Quantity, Taken
from benchmarks.trainings import Started, Training

WORKERS = 4


IMPORTED_S = 0.5
"""A limit of processor time: a fork's imports take less, importing TensorFlow takes more."""


def _first(started: Started, *, crashes: bool, is_fork: bool = False) -> Taken:
    """Measure the time to the last worker's first step, and the mean processor time of a worker.

    Processor time is measured up to that step, and from the end of the imports to that step.
    Raises `Failed` if forks should be measured and a worker did the imports itself: tfcluster
    may start it like that, and its output says why.
    """
    steps = started.wait_for("step-0-*", WORKERS)
    if is_fork and max(cpu - later for *_, cpu, later in steps) > IMPORTED_S:
        raise Failed(f"a worker imported TensorFlow itself:\n{started.box.said()}")
    taken = {
        "from Enter": max(at for _, at, *_ in steps) - started.began,
        "processor, a worker": sum(cpu for *_, cpu, _ in steps) / WORKERS,
        "after its imports": sum(cpu for *_, cpu in steps) / WORKERS,
    }
    if crashes:
        again = started.wait_for("step-1-*", WORKERS)
        ((crashed,),) = started.wait_for("crashed", 1)
        taken["from a crash"] = max(at for _, at, *_ in again) - crashed
    else:
        started.box.end(started.process)
    return taken


def first_step(*, quick: bool, venv: str, preload: float, warm: float) -> Metric:
    """Return the metric; its bars are the savings of one import instead of four on two cores.

    They differ by version of TensorFlow.
    """
    crash = Training(venv, WORKERS, ("crash",), restarts=1)
    plain = Training(venv, WORKERS, ("first",))
    arms = crash.arms(partial(_first, crashes=True), "shell", "cold")
    arms |= crash.arms(partial(_first, crashes=True, is_fork=True), "preload")
    arms |= plain.arms(partial(_first, crashes=False, is_fork=True), "warm")
    enter, again = "from Enter", "from a crash"
    stretch = {0.65: 0.55, 0.72: 0.60, 0.45: 0.38, 0.30: 0.22}
    return Metric(
        title=f"First training step of the last of {WORKERS} workers",
        quantities={
            enter: Quantity("s"),
            again: Quantity("s"),
            "processor, a worker": Quantity("s"),
            "after its imports": Quantity("s"),
        },
        arms=arms,
        claims=[
            Claim("preload : shell", enter, "preload", "shell", preload, stretch=stretch[preload]),
            Claim("warm : shell", enter, "warm", "shell", warm, stretch=stretch[warm]),
            Claim("cold : shell", enter, "cold", "shell"),
            Claim("after a crash, preload : shell", again, "preload", "shell", 0.45, stretch=0.35),
            Claim("after a crash, cold : shell", again, "cold", "shell"),
        ],
        note="In the first attempt one worker kills itself after its first step. shell: a loop "
        "that then kills the others and starts all again. warm: a second run of the same job.",
    )


def _shares(started: Started) -> Taken:
    """Measure the proportional set size: a page shared by several processes counts once."""
    steps = started.wait_for("step-0-*", WORKERS)
    workers = {int(pid) for pid, *_ in steps}
    by_pid = {one.pid: _pss_mb(one) for one in started.box.processes() if _has_tensorflow(one.pid)}
    return {
        "workers": sum(by_pid[pid] for pid in workers),
        "with the preloader": sum(by_pid.values()),
    }


def _pss_mb(process: psutil.Process) -> float:
    return float(process.memory_full_info().pss) / 1e6


def _has_tensorflow(pid: int) -> bool:
    try:
        return "libtensorflow" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def pss(*, quick: bool, venv: str) -> Metric:
    """Return the metric: the memory of one job's workers, stopped after their first step."""
    return Metric(
        title=f"Memory of {WORKERS} workers of one job together (PSS), after the first step",
        quantities={"workers": Quantity("MB"), "with the preloader": Quantity("MB")},
        arms=Training(venv, WORKERS, ("hold",)).arms(_shares, "shell", "cold", "preload"),
        claims=[
            Claim("preload : cold", "workers", "preload", "cold", at_most=0.8, stretch=0.6),
            Claim("with the preloader", "with the preloader", "preload", "cold"),
        ],
    )
