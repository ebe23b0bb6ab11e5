"""`estimator_mnist` without the launcher gives the same numbers with one and with two workers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .conftest import PYTHONS, Ended, Gang, run_plain

# Several TensorFlow processes on two busy cores.
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(300)]

JOB = "tfcluster_workers.jobs.estimator_mnist"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data folder with a small `synthetic_digits`."""
    folder = tmp_path_factory.mktemp("tfds")
    script = Path(__file__).parent / "small_digits.py"
    run_plain(PYTHONS["tf215"], str(script), "--data-dir", str(folder)).check_returncode()
    return folder


@pytest.fixture(scope="module")
def train(gang: Gang, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Gang:
    """Return a function that trains three steps: `train(*tasks)`."""

    def run(*tasks: str) -> dict[str, Ended]:
        place = tmp_path_factory.mktemp("estimator")

        def env(task: str) -> dict[str, str]:
            own = task.replace(":", "-") if task == "worker:1" else "chief"
            folders = {"TFDS_DATA_DIR": data_dir, "TFCLUSTER_CHECKPOINT_DIR": place / own}
            return {name: str(folder) for name, folder in folders.items()}

        target = ["module", JOB, "--max-steps=3", "--save-steps=3"]
        ended = gang(PYTHONS["tf215"], tasks, target, cwd=place, env=env)
        for name, task in ended.items():
            assert task.code == 0, name + task.text[-4000:]
        return ended

    return run


@pytest.fixture(scope="module")
def two(train: Gang) -> dict[str, Ended]:
    return train("worker:0", "worker:1", "evaluator:0")


def final_loss(task: Ended) -> float:
    (loss,) = re.findall(r"Loss for final step: ([\d.]+)\.$", task.text, re.MULTILINE)
    return float(loss)


def test_two_workers_have_the_same_loss_as_one(train: Gang, two: dict[str, Ended]) -> None:
    # The job uses momentum: Adam would hide a loss that is divided by the workers once too often.
    (alone,) = train("worker:0").values()
    for task in ("worker:0", "worker:1"):
        assert final_loss(two[task]) == pytest.approx(final_loss(alone), abs=1e-5)


def test_the_evaluator_reports_that_it_is_alive_and_its_results(two: dict[str, Ended]) -> None:
    events = two["evaluator:0"].events
    assert {"type": "evaluated", "step": 3} in events
    assert {"type": "alive"} in events
    assert "evaluated step 3" in two["evaluator:0"].text


def test_every_worker_reports_its_steps(two: dict[str, Ended]) -> None:
    for task in ("worker:0", "worker:1"):
        progress = [event for event in two[task].events if event["type"] == "progress"]
        assert {event["total_steps"] for event in progress if "total_steps" in event} == {3}


def test_a_tensorflow_without_estimator_is_refused_with_the_fix() -> None:
    refused = run_plain(PYTHONS["newest"], "-m", JOB)
    assert refused.returncode == 1
    last = refused.stderr.splitlines()[-1]
    assert last.startswith("estimator_mnist: TensorFlow 2.2")
    assert "has no tf.estimator (the last release with it is 2.15)" in last
    assert last.endswith("tfcluster up SPEC --python PATH")
