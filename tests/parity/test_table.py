"""The page has every cell of the matrix, and reading it returns the written numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import pytest

from . import table
from .measure import KERAS, WORKERS, Training, deviation

ONE = Training("Keras 3", "SGD", "full", 1, "3.15.1", (2.0, 1.0), (0.5, 0.6), (0.8, 0.9), 370.0)


def test_the_page_has_a_row_for_every_cell_of_the_matrix() -> None:
    cells = set(product(KERAS, ("SGD", "Adam"), ("full", "partial", "uneven"), WORKERS))
    assert set(table.read(table.PAGE.read_text())) == cells


def test_the_page_shows_no_deviation_above_what_the_test_allows() -> None:
    text = table.PAGE.read_text()
    (sgd, adam) = map(float, re.findall(r"largest deviation is (\S+) with SGD and (\S+) ", text)[0])
    assert 0 < sgd <= table.SGD
    assert 0 < adam <= table.ADAM


def test_written_trainings_are_read_back() -> None:
    several = replace(ONE, workers=2, loss=(2.0, 1.000002))
    shown = table.read(table.page([ONE, several, replace(ONE, optimizer="Adam")]))
    assert shown[several.key] == (2.0, 1.000002, 0.6, 0.9, 370.0)
    assert len(shown) == 3


def test_the_deviation_is_the_largest_of_losses_metrics_and_weights() -> None:
    assert deviation(replace(ONE, weights=370.37), ONE) == pytest.approx(1e-3)
    assert deviation(replace(ONE, loss=(2.0, 1.01)), ONE) == pytest.approx(1e-2)
    assert deviation(replace(ONE, top_3=(0.8, 0.99)), ONE) == pytest.approx(0.1)
    assert deviation(replace(ONE, top_3=(0.8, 0.99)), ONE, metrics=False) == 0
