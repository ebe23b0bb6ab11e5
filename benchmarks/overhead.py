"""What a run costs before its tasks begin and after they have ended, beside a plain shell."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.harness import Metric, Ratio
from benchmarks.runs import Timed, timed_run, timed_shell

WORKERS = (1, 2, 4, 8)
STAMPS = Path(__file__).with_name("stamps.py")


def _stamps(timed: Timed, workers: int) -> list[tuple[float, float]]:
    found = [path.read_text().split() for path in timed.folder.glob("stamp-*")]
    if len(found) != workers:
        raise SystemExit(f"{len(found)} of {workers} workers ran")
    return [(float(began), float(ended)) for began, ended in found]


def _before(timed: Timed, workers: int) -> float:
    """From the command's start to the last worker's first line of Python."""
    return max(began for began, _ in _stamps(timed, workers)) - timed.began


def _after(timed: Timed, workers: int) -> float:
    """From the last worker's last line to the command's end."""
    return timed.ended - max(ended for _, ended in _stamps(timed, workers))


def _tfcluster(measure: Callable[[Timed, int], float], workers: int) -> float:
    with timed_run(workers, STAMPS) as timed:
        return measure(timed, workers)


def _shell(measure: Callable[[Timed, int], float], workers: int) -> float:
    with timed_shell(workers, shlex.join([sys.executable, str(STAMPS)])) as timed:
        return measure(timed, workers)


def _metric(title: str, measure: Callable[[Timed, int], float]) -> Metric:
    return Metric(
        title=title,
        unit="s",
        variants={f"tfcluster, {n}": partial(_tfcluster, measure, n) for n in WORKERS}
        | {f"shell, {n}": partial(_shell, measure, n) for n in WORKERS},
        ratios=[
            Ratio(f"tfcluster : shell, {n}", f"tfcluster, {n}", f"shell, {n}") for n in WORKERS
        ],
    )


START = _metric("Start: N workers, until the last one's first line", _before)
EXIT = _metric("Exit: N workers, from the last one's last line", _after)
