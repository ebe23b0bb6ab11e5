"""The table of faults with real TensorFlow workers: each fault once for each role and each phase.

`cells.EMPTY` gives the reason for each empty cell. All cells run on stubs (test_with_stubs).
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
from .cells import COVER, EMPTY, PHASES, UNDISTURBED, Cell
from .scene import Ended, Job, Trained, check, play

# Two or three TensorFlow processes, started twice, on two busy cores.
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(300)]
WITH_THREE_WORKERS = {
    Cell("sigkill", "chief", "saving"),
    Cell("sigstop", "other", "training"),
    Cell("exception", "other", "training"),
    Cell("port-thief", "other", "before-join"),
}
Row = tuple[Cell, str, int]
TABLE: list[Row] = [
    (cell, list(PYTHONS)[number % 2], 3 if cell in WITH_THREE_WORKERS else 2)
    for number, cell in enumerate(COVER)
]


def training(tensorflow: str, cell: Cell) -> Job:
    return Job(
        "train.py",
        python=str(PYTHONS[tensorflow]),
        supervision={"start_deadline_s": 10 if cell.kind == "never-starts" else 120},
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


def test_the_table_covers_every_role_phase_and_tensorflow() -> None:
    kinds = {cell.kind for cell, _, _ in TABLE}
    assert len(TABLE) == 24
    for kind in kinds:
        rows = [row for row in TABLE if row[0].kind == kind]
        assert {row[0].role for row in rows} == {"chief", "other"}
        assert {row[1] for row in rows} == set(PYTHONS)
        phases = PHASES[:1] if kind in EMPTY else PHASES
        assert {row[0].phase for row in rows} == set(phases)
    assert sum(workers == 3 for _, _, workers in TABLE) == 4
