"""How much slower four chatty workers end under tfcluster than under `cat`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from benchmarks.harness import Metric, Ratio
from benchmarks.runs import timed_shell, timed_up

WORKERS = 4
LINES = 200_000


def _command(lines: int) -> list[str]:
    return [sys.executable, str(Path(__file__).with_name("writer.py")), str(lines)]


def _tfcluster(lines: int) -> float:
    return timed_up(WORKERS, _command(lines), lines=WORKERS * lines)


def _cat(lines: int) -> float:
    one = f"{shlex.join(_command(lines))} | cat >> merged &\n"
    return timed_shell(one * WORKERS + "wait", lines=WORKERS * lines)


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
        )
    ],
)
