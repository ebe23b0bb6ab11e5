"""Writes and reads values as CSV: a line per value, with commit, versions and command."""

from __future__ import annotations

import csv
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

from benchmarks.harness import Metric, Value

HERE = Path(__file__).parent
RESULTS = HERE / "results"
_COLUMNS = [one.name for one in fields(Value)]


def signed(values: Iterable[Value], metric: Metric, *, more: str) -> list[Value]:
    """Return the values with commit, versions and command; `more` is added to the versions."""
    return [
        replace(
            value,
            commit=_commit(),
            versions="; ".join(filter(None, [_machine(), metric.arms[value.arm].version, more])),
            command=metric.arms[value.arm].command,
        )
        for value in values
    ]


def write(path: Path, values: Sequence[Value]) -> None:
    """Write a CSV file atomically, so that an interrupted benchmark keeps its rounds so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    with fresh.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for value in values:
            writer.writerow(astuple(replace(value, value=float(f"{value.value:.6g}"))))
    fresh.replace(path)


def read(path: Path) -> list[Value]:
    with path.open(newline="") as file:
        return [
            Value(metric, arm, quantity, int(run), float(value), unit, *more)
            for metric, arm, quantity, run, value, unit, *more in list(csv.reader(file))[1:]
        ]


@cache
def _commit() -> str:
    """Return the current commit, with a + if the tree has changes."""
    git = ["git", "-C", str(HERE)]
    done = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD"], capture_output=True).returncode
    return done.stdout.strip() + ("+" if changed else "") if done.returncode == 0 else "unknown"


@cache
def _machine() -> str:
    own = f"tfcluster {version('tfcluster')}; Python {platform.python_version()}"
    return f"{own}; {platform.system()} {platform.release()}, {os.cpu_count()} cores"
