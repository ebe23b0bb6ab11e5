"""How much slower four chatty workers end under tfcluster than under `cat`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from benchmarks.harness import Metric, Ratio
from benchmarks.runs import check_lines, timed_run, timed_shell

WORKERS = 4
LINES = 200_000
WRITER = Path(__file__).with_name("writer.py")


def _tfcluster(lines: int) -> float:
    with timed_run(WORKERS, WRITER, str(lines)) as timed:
        check_lines(timed, WORKERS * lines)
    return timed.seconds


def _cat(lines: int) -> float:
    write = shlex.join([sys.executable, str(WRITER), str(lines)])
    with timed_shell(WORKERS, f"{write} | cat >> merged") as timed:
        check_lines(timed, WORKERS * lines)
    return timed.seconds


METRIC = Metric(
    title=f"Log throughput: {WORKERS} workers × {LINES:,} lines of 85 characters",
    unit="s",
    variants={
        "tfcluster": lambda: _tfcluster(LINES),
        "tfcluster, no lines": lambda: _tfcluster(0),
        "cat": lambda: _cat(LINES),
        "cat, no lines": lambda: _cat(0),
    },
    ratios=[
        Ratio(
            "tfcluster : cat, no-op subtracted",
            above="tfcluster",
            above_noop="tfcluster, no lines",
            below="cat",
            below_noop="cat, no lines",
        ),
        Ratio(
            "tfcluster − no-op : cat",
            above="tfcluster",
            above_noop="tfcluster, no lines",
            below="cat",
        ),
    ],
)
