"""Every cell of the table of faults has its outcome on stub workers that replay TensorFlow."""

from __future__ import annotations

import hashlib

import pytest
from tests.integration.commandline import CommandLine

from .cells import COVER, TABLE, Cell
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
    deadline_s = 1 if cell.kind == "never-starts" else 60
    return Job(
        "stub_worker.py",
        args=[f"--steps={STEPS}", f"--like={like}"],
        supervision={"backoff_s": 0, "start_deadline_s": deadline_s},
    )


QUICK = {cell.kind: cell for cell in COVER if (cell.kind, cell.phase) != ("sigstop", "before-join")}
"""A cell of each kind.

The task that stops before it has joined is left out: it takes ten seconds.
"""


@pytest.mark.parametrize(
    ("cell", "like"), [(cell, LIKE[n % 2]) for n, cell in enumerate(QUICK.values())], ids=str
)
def test_each_kind_of_fault(shell: CommandLine, cell: Cell, like: str) -> None:
    ended = play(shell, cell, stub(like, cell), workers=2)
    check(shell, ended, cell, workers=2, trained=trained())


@pytest.mark.slow
@pytest.mark.parametrize("like", LIKE)
@pytest.mark.parametrize("cell", TABLE, ids=str)
def test_every_cell_of_the_table(shell: CommandLine, cell: Cell, like: str) -> None:
    ended = play(shell, cell, stub(like, cell), workers=3)
    check(shell, ended, cell, workers=3, trained=trained())
