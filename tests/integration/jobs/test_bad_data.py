"""A data error ends a run in its prepare step: exit code 3, a message and no task."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.documentation import unprinted

from .lab import PYTHONS, SPECS, Lab, a_lab

# TensorFlow Datasets is imported to list the known names, and imports TensorFlow.
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(200)]

UP = ("up", str(SPECS / "localhost-2w.json"), f"--python={PYTHONS['tf215']}", "--")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab() as made:
        yield made


def test_the_run_ends_before_its_tasks_start_with_the_reason(lab: Lab) -> None:
    trained = lab.train(*UP, "--dataset", "fashion_mnits")
    assert trained.code == 3
    said = " ".join(trained.err.split())
    assert "prepare failed on local with exit code 1; no task was started" in said
    assert "prepare: no data set named 'fashion_mnits'; nearest: fashion_mnist, " in said
    assert unprinted("tutorials/data.md", "prepare failed", trained.err) == []
    assert trained.of("task_started") == []
    assert "Traceback" not in trained.out + trained.err
