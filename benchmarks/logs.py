"""Four workers that print many lines into one merged stream: its duration and its lost lines."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.harness import Arm, Claim, Metric, Quantity, Taken
from benchmarks.launchers import LAUNCHERS, Gang, Launcher
from benchmarks.sandbox import sandbox

WORKERS = 4
WRITER = Path(__file__).with_name("writer.py")
_PREFIX = rb"worker:(\d) \xe2\x94\x82 |\[default(\d)\]:|[\d:]+ w(\d)\.1 +\| "
_LINE = re.compile(rb"^(?:" + _PREFIX + rb")?(\d) (\d{8}) \.{73}$", re.MULTILINE)
"""A worker's line after the prefix of one of the launchers, which must name that worker."""
_OWN = re.compile(rb"^[\d:]+ system +\| ", re.MULTILINE)
"""A line of honcho's own."""
Command = Callable[[Path, int], list[str]]
"""A function that returns the command for a folder and a number of lines per worker."""


def _gang(lines: int) -> Gang:
    return Gang(WORKERS, [sys.executable, "-S", str(WRITER), str(lines)])


def _launched(launcher: Launcher, folder: Path, lines: int) -> list[str]:
    command = launcher.command(folder, _gang(lines))
    if launcher is LAUNCHERS["torchrun"]:
        command[1:1] = ["--tee", "3", "--log-dir", str(folder / "logs")]
    return command


def _cat(folder: Path, lines: int) -> list[str]:
    """Merge with a shell script, which cannot name the worker that wrote a line."""
    command = " ".join(_gang(lines).command)
    one = [f"RANK={rank} {command} | cat >> stdout &" for rank in range(WORKERS)]
    return ["bash", "-c", "\n".join([*one, "wait"])]


def _logs(lines: int, command: Command) -> Taken:
    idle = _seconds(command, 0)
    with sandbox() as box:
        began, ended = box.run(command(box.folder, lines))
        lost, torn = fidelity((box.folder / "stdout").read_bytes(), lines)
    whole = ended - began
    return {
        "above no-op": whole - idle,
        "whole": whole,
        "no-op": idle,
        "lines lost": float(lost),
        "lines torn or mixed": float(torn),
    }


def _seconds(command: Command, lines: int) -> float:
    with sandbox() as box:
        began, ended = box.run(command(box.folder, lines))
        return ended - began


def fidelity(merged: bytes, lines: int, workers: int = WORKERS) -> tuple[int, int]:
    """Count the lines that did not arrive whole, and the lines that are torn or mixed.

    A line is torn or mixed if it is not one line of one worker after that worker's prefix.
    """
    seen = [bytearray(lines) for _ in range(workers)]
    for *prefixes, rank, number in _LINE.findall(merged):
        if all(prefix in (b"", rank) for prefix in prefixes) and int(number) < lines:
            seen[int(rank)][int(number)] = 1
    arrived = merged.count(b"\n") - len(_OWN.findall(merged))
    whole = sum(map(sum, seen))
    return workers * lines - whole, arrived - whole


def logs(*, quick: bool) -> Metric:
    """Return the metric: 4 workers × 200,000 lines of 85 characters, standard output to a file."""
    lines = 2000 if quick else 200_000
    arms = {}
    for name in ("tfcluster", "torchrun", "honcho"):
        launcher = LAUNCHERS[name]
        take = partial(_logs, lines, partial(_launched, launcher))
        most = 1 if name == "honcho" else None
        shown = launcher.shown.replace("torchrun ", "torchrun --tee 3 --log-dir logs ")
        arms[name] = Arm(take, shown, launcher.version, launcher.missing, most)
    arms["shell"] = Arm(partial(_logs, lines, _cat), "COMMAND | cat >> merged &  … 4 times; wait")
    return Metric(
        title=f"Logs: {WORKERS} workers × {lines:,} lines of 85 characters, one merged stream",
        quantities={
            "above no-op": Quantity("s"),
            "whole": Quantity("s"),
            "no-op": Quantity("s"),
            "lines lost": Quantity("lines", "worst"),
            "lines torn or mixed": Quantity("lines", "worst"),
        },
        arms=arms,
        claims=[
            Claim("tfcluster : torchrun", "above no-op", "tfcluster", "torchrun", 1, stretch=0.5),
            Claim("tfcluster : honcho", "above no-op", "tfcluster", "honcho"),
            Claim("tfcluster : shell", "above no-op", "tfcluster", "shell"),
            Claim("tfcluster, lines lost", "lines lost", "tfcluster", at_most=0),
            Claim("tfcluster, lines torn", "lines torn or mixed", "tfcluster", at_most=0),
        ],
        note="The no-op is the same run without lines, measured just before.",
    )
