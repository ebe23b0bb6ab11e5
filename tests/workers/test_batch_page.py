"""The program of docs/guides/batch-and-learning-rate.md prints the output that the page shows."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
from tests.documentation import unprinted

from tfcluster_workers.jobs.parts import options

from .conftest import PYTHONS, run_plain

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides/batch-and-learning-rate.md").read_text()


@pytest.fixture(scope="module")
def printed() -> str:
    """Return the output of the page's program."""
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    done = run_plain(PYTHONS["tf215"], "-c", program, TF_CPP_MIN_LOG_LEVEL="3")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.tensorflow
def test_the_page_shows_what_its_program_prints(printed: str) -> None:
    assert f"```output\n{printed}```\n" in PAGE
    assert unprinted("guides/batch-and-learning-rate.md", "compute_average_loss", printed) == []


@pytest.mark.tensorflow
def test_the_worked_example_of_two_replicas(printed: str) -> None:
    """The replicas have the losses [2, 3] and [4, 5], with global batch 4."""
    numbers = [re.findall(r"\d\.\d\d(?!\d)(?! on)", line) for line in printed.splitlines()]
    averages, added, mean, metric, examples, means, doubled, penalty = numbers
    assert averages == ["1.25", "2.25"]
    assert added == examples == ["3.50"]
    assert mean == metric == ["1.75"]
    assert (means, doubled) == (["2.50", "4.50"], ["7.00"])
    assert penalty == ["0.40", "0.40"]


ROW = r"^\| (\d[^|]*) \|(?: `([^`]*)`)? \| (\d+) \| (\S+) \|$"


@pytest.mark.parametrize(("workers", "given", "batch", "rate"), re.findall(ROW, PAGE, re.MULTILINE))
def test_the_tables_learning_rates_match_the_options(
    workers: str, given: str, batch: str, rate: str
) -> None:
    parser = argparse.ArgumentParser()
    options.add_training(parser)
    chosen = parser.parse_args(given.split())
    for replicas in map(int, workers.split(",")):
        size = options.global_batch(chosen, replicas)
        assert size == int(batch)
        assert 1e-3 * options.learning_rate_scale(chosen, size) == pytest.approx(float(rate))


def test_the_table_has_five_rows() -> None:
    assert len(re.findall(ROW, PAGE, re.MULTILINE)) == 5
