"""Every cell of the table of faults has its outcome on stub workers that replay TensorFlow."""

from __future__ import annotations

import hashlib

import pytest
from tests.integration.commandline import CommandLine

from .cells import TABLE, Cell
from .scene import Job, Trained, check, play

STEPS = 30
LIKE = ("newest", "tf215")


def trained(steps: int = STEPS) -> Trained:
    """Return the result of a stub that did each step once and in order."""
    digest = ""
    for step in range(1, steps + 1):
        digest = hashlib.sha256(f"{digest} {step}".encode()).hexdigest()
    return Trained(loss=1 / steps, accuracy=int(digest[:8], 16) / 0xFFFFFFFF)


def stub(like: str, cell: Cell) -> Job:
    deadline_s = 5 if cell.kind == "never-starts" else 60
    return Job(
        "stub_worker.py",
        args=[f"--steps={STEPS}", f"--like={like}"],
        supervision={"backoff_s": 0, "start_deadline_s": deadline_s},
    )


QUICK = {cell.kind: cell for cell in TABLE if (cell.kind, cell.phase) != ("sigstop", "before-join")}
"""A cell of each kind, for `make test-fast`.

The task that stops before it has joined is left out: it takes ten seconds.
"""


@pytest.mark.parametrize(
    ("cell", "like", "workers"),
    [
        pytest.param(
            *(cell, LIKE[number % 2], 2 + number // 2 % 2),
            marks=() if cell in QUICK.values() else pytest.mark.slow,
        )
        for number, cell in enumerate(TABLE)
    ],
    ids=str,
)
def test_every_cell_of_the_table(shell: CommandLine, cell: Cell, like: str, workers: int) -> None:
    ended = play(shell, cell, stub(like, cell), workers=workers)
    check(shell, ended, cell, workers=workers, trained=trained())
