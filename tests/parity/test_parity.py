"""1, 2 and 3 workers train to the same numbers, and docs/parity.md shows them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.integration.commandline import CommandLine

from . import table
from .measure import KERAS, Key, Training, deviation, measure

# Each gang trains once, which can take minutes on a busy machine.
pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.matrix,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

GetTraining = Callable[[Key], Training]


@pytest.fixture(scope="module")
def training() -> Iterator[GetTraining]:
    """Yield a function that returns a key's training; each gang runs at its first use."""
    root = Path(tempfile.mkdtemp(prefix="tfc-", dir="/tmp"))
    line = CommandLine(root)
    line.env["CUDA_VISIBLE_DEVICES"] = "-1"

    @cache
    def gang(keras: str, workers: int) -> dict[Key, Training]:
        return {one.key: one for one in measure(line, keras, workers)}

    yield lambda key: gang(key[0], key[3])[key]
    try:
        line.clean_up()
    finally:
        shutil.rmtree(root)


@pytest.mark.parametrize("batches", ["full", "partial", "uneven"])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize(
    ("keras", "workers"),
    [
        pytest.param("Keras 3", 2, marks=pytest.mark.next),
        ("Keras 3", 3),
        ("tf_keras", 2),
        ("Keras 2.15", 2),
    ],
)
def test_several_workers_train_to_the_same_numbers_as_one(
    training: GetTraining, keras: str, workers: int, optimizer: str, batches: str
) -> None:
    several = training((keras, optimizer, batches, workers))
    one = training(several.alone)
    found = deviation(several, one, metrics=table.counts_all_alike(several))
    assert found <= table.bound(several), f"\n{several}\n{one}"
    assert several.loss[-1] < 0.97 * several.loss[0], "nothing was learned: equal by standing still"


@pytest.mark.parametrize("keras", KERAS)
def test_the_page_shows_the_measured_numbers(training: GetTraining, keras: str) -> None:
    """The numbers may differ slightly: another processor rounds differently.

    One or two examples may then get another class.
    """
    page = table.read(table.PAGE.read_text())
    shown = {key: numbers for key, numbers in page.items() if key[0] == keras and key[3] < 3}
    assert len(shown) == 2 * 6
    for key, numbers in shown.items():
        measured = [float(value) for value in table.values(training(key))]
        *losses, accuracy, top_3, weights = numbers
        assert measured[:3] == pytest.approx(losses, rel=1e-3)
        assert measured[3:5] == pytest.approx([accuracy, top_3], abs=0.006)
        assert measured[5] == pytest.approx(weights, rel=1e-3)
