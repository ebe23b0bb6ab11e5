"""`estimator_mnist` from its spec: trained by two workers, evaluated by a third task, exported."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.documentation import unprinted

from .lab import SPECS, Lab, Trained, a_lab

# Three TensorFlow processes on two busy cores.
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

SPEC = str(SPECS / "estimator-2w-evaluator.json")
TASKS = ("worker:0", "worker:1", "evaluator:0")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab() as made:
        yield made


@pytest.fixture(scope="module")
def trained(lab: Lab) -> Trained:
    """Train the shipped spec, but sharded by file.

    The test split has fewer files than there are workers, but the policy is for training only:
    evaluation and prediction read all of their split.
    """
    trained = lab.train(
        "up", SPEC, "--set=supervision.finish_grace_s=300", "--", "--shard-policy=file"
    )
    assert trained.code == 0, trained.complaint()
    return trained


def test_all_tasks_reach_the_last_step_and_exit_by_themselves(trained: Trained) -> None:
    exits = {event["task"]: event for event in trained.of("task_exited")}
    assert set(exits) == set(TASKS)
    # On a busy machine TensorFlow may need longer than finish_grace_s to return from training; then
    # tfcluster stops a worker that is not the chief.
    for task in ("worker:0", "evaluator:0"):
        assert (exits[task]["exit_code"], exits[task]["ended_by"]) == (0, "itself")
    for task in TASKS:
        assert trained.of("progress", task)[-1]["step"] == 300


def test_each_worker_reads_its_own_part(trained: Trained) -> None:
    for number in (0, 1):
        parts = set(trained.said(f"worker:{number}", r"^reads part (.*) of the examples"))
        assert parts == {f"{number + 1} of 2"}


def test_each_result_of_the_evaluator_is_reported(trained: Trained) -> None:
    (accuracy,) = trained.said("evaluator:0", r"^test accuracy (\S+)")
    assert float(accuracy) >= 0.95
    assert trained.said("evaluator:0", r"^evaluated step (\d+) loss")[-1] == "300"
    evaluations = trained.of("progress", "evaluator:0")
    assert evaluations[-1]["metrics"]["accuracy"] == pytest.approx(float(accuracy), abs=1e-4)
    assert not any("steps_per_second" in event for event in evaluations)


def test_the_chief_and_its_export_give_the_same_predictions(trained: Trained) -> None:
    (predicted,) = trained.said("worker:0", r"^predicted ([\d ]+), labels")
    (labels,) = trained.said("worker:0", r"^predicted [\d ]+, labels ([\d ]+)$")
    correct = [
        class_ == label for class_, label in zip(predicted.split(), labels.split(), strict=True)
    ]
    assert sum(correct) >= 7
    assert len(correct) == 8
    (difference,) = trained.said(
        "worker:0", r"^exported \S+: its predictions differ by (\S+) at most"
    )
    assert float(difference) < 1e-6


def test_the_page_shows_what_is_printed(trained: Trained) -> None:
    assert unprinted("tutorials/estimator_mnist.md", "exported", trained.out) == []


def test_checkpoints_and_the_export_are_gathered(trained: Trained) -> None:
    kinds = [checkpoint["kind"] for checkpoint in trained.state["checkpoints"]]
    assert kinds[-1] == "saved_model"
    steps = [checkpoint["step"] for checkpoint in trained.state["checkpoints"][:-1]]
    assert steps[-1] == 300
    assert "tf.saved_model.load(" in trained.err
