"""What a run costs that does nothing, beside starting the same processes from a shell."""

from __future__ import annotations

import sys
from functools import partial

from benchmarks.harness import Metric, Ratio
from benchmarks.runs import timed_shell, timed_up

WORKERS = (1, 2, 4, 8)
NOTHING = [sys.executable, "-c", "pass"]
"""A Python that ends at once: what a task is at least."""


def _shell(workers: int) -> float:
    return timed_shell(f"{sys.executable} -c pass &\n" * workers + "wait")


METRIC = Metric(
    title="Start overhead: N workers that do nothing",
    unit="s",
    variants={f"tfcluster, {n}": partial(timed_up, n, NOTHING) for n in WORKERS}
    | {f"shell, {n}": partial(_shell, n) for n in WORKERS},
    ratios=[Ratio(f"tfcluster : shell, {n}", f"tfcluster, {n}", f"shell, {n}") for n in WORKERS],
)
