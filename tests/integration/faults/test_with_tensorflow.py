"""Some cells of the table of faults with real TensorFlow workers.

All cells run on stubs (test_with_stubs), which behave as TensorFlow does (test_recordings).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.integration.commandline import CommandLine

from .bare import PYTHONS
from .cells import UNDISTURBED, Cell
from .scene import Ended, Job, Trained, check, play

# Two or three TensorFlow processes, started twice, on two busy cores.
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(300)]
Row = tuple[Cell, str, int]
TABLE: list[Row] = [
    (Cell("sigkill", "chief", "saving"), "tf215", 3),
    (Cell("sigkill", "other", "training"), "newest", 2),
    (Cell("sigstop", "other", "training"), "tf215", 3),
    (Cell("sigterm", "chief", "saving"), "newest", 2),
    (Cell("exception", "other", "training"), "newest", 3),
    (Cell("out-of-memory", "chief", "training"), "tf215", 2),
    (Cell("never-starts", "chief", "before-join"), "newest", 2),
    (Cell("port-thief", "other", "before-join"), "tf215", 2),
]
"""Each kind that ends differently with TensorFlow; `recordings.json` has the others."""


def training(tensorflow: str, cell: Cell) -> Job:
    return Job(
        "train.py",
        python=str(PYTHONS[tensorflow]),
        supervision={"start_deadline_s": 20 if cell.kind == "never-starts" else 120},
        memory_bytes=4 << 30,
        timeout_s=200,
    )


@pytest.fixture(scope="module")
def undisturbed() -> Callable[[str], Trained]:
    """Return a function that gives the result without a fault, trained once for each TensorFlow."""

    @cache
    def train(tensorflow: str) -> Trained:
        root = Path(tempfile.mkdtemp(prefix="tfc-", dir="/tmp"))
        line = CommandLine(root)
        try:
            ended = play(line, UNDISTURBED, training(tensorflow, UNDISTURBED), workers=2)
            assert ended.code == 0, ended.last_output()
            return Trained.of(ended.log("worker:0", 1))
        finally:
            line.clean_up()
            shutil.rmtree(root)

    return train


def name(row: Row) -> str:
    return "{}-{}-{}w".format(*row)


@pytest.mark.parametrize("row", TABLE, ids=name)
def test_each_fault_has_the_expected_outcome(
    shell: CommandLine, row: Row, undisturbed: Callable[[str], Trained]
) -> None:
    cell, tensorflow, workers = row
    ended: Ended = play(shell, cell, training(tensorflow, cell), workers=workers)
    check(shell, ended, cell, workers=workers, trained=undisturbed(tensorflow))
