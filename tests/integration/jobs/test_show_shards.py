"""Two real workers read their own files, a part of each batch, or everything, by policy."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest
from tests.documentation import unprinted

from .lab import PYTHONS, ROOT, Lab, Trained, a_lab

# Two TensorFlow processes on two busy cores.
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(300)]

PYTHON = str(PYTHONS["tf215"])
SHOW = ("run", "-n", "2", f"--python={PYTHON}", "-m", "tfcluster_workers.jobs.show_shards")
FILES = [f"0000{number}-of-00004" for number in range(4)]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Yield a lab with a data set of 320 examples in four files."""
    with a_lab(own_data=True) as made:
        script = ROOT / "tests" / "workers" / "small_digits.py"
        env = {**os.environ, **made.line.env, "PYTHONPATH": str(ROOT / "workers")}
        subprocess.run([PYTHON, script], env=env, check=True, capture_output=True)
        yield made


@pytest.fixture(scope="module")
def shown(lab: Lab) -> Trained:
    trained = lab.train(*SHOW)
    assert trained.code == 0, trained.complaint()
    return trained


def line(shown: Trained, worker: int, policy: str) -> str:
    (found,) = shown.said(f"worker:{worker}", rf"^ *{policy}: (.*)$")
    return found


def test_by_file_each_worker_reads_its_own_files(shown: Trained) -> None:
    own = [{name for name in FILES if name in line(shown, n, "file")} for n in (0, 1)]
    assert own == [{FILES[0], FILES[2]}, {FILES[1], FILES[3]}]
    for number in (0, 1):
        assert line(shown, number, "file").startswith("160 of 320 examples (80 of file ")


def test_by_data_each_worker_reads_its_part_of_every_batch(shown: Trained) -> None:
    # Batches of 96 are split in halves of 48; of the last 32 of the 320, each gets 16.
    first, second = line(shown, 0, "data"), line(shown, 1, "data")
    assert first.startswith("160 of 320 examples (48 of file")
    assert second.startswith("160 of 320 examples (32 of file")
    assert first.endswith("the first are 0, 1, 2")
    assert second.endswith("the first are 48, 49, 50")


def test_with_sharding_off_both_workers_read_everything(shown: Trained) -> None:
    everything = ", ".join(f"80 of file {name}" for name in FILES)
    for number in (0, 1):
        expected = f"320 of 320 examples ({everything}); the first are 0, 1, 2"
        assert line(shown, number, "off") == expected


def test_the_page_shows_what_is_printed(shown: Trained) -> None:
    assert unprinted("tutorials/data.md", "the first are", shown.out) == []
