"""`custom_loop` has the same result with three Keras versions and three ways to iterate.

Each run is started once with the real command and serves several tests.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.documentation import unprinted

from .lab import PYTHONS, SPECS, Lab, Trained, a_lab

TASKS = ("worker:0", "worker:1")
# Several TensorFlow processes on two busy cores.
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

Small = Callable[..., Trained]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab() as made:
        yield made


@pytest.fixture(scope="module")
def first(lab: Lab) -> Trained:
    """The run of the spec as it is shipped."""
    trained = lab.train("up", str(SPECS / "custom-loop-2w.json"))
    assert trained.code == 0, trained.complaint()
    return trained


@pytest.fixture(scope="module")
def small(lab: Lab) -> Small:
    """Return a function that runs 3 epochs of 5 steps: `small(tensorflow, way, *options_of_up)`."""

    @cache
    def train(tensorflow: str, way: str, *options: str) -> Trained:
        trained = lab.train(
            *("up", str(SPECS / "custom-loop-2w.json"), f"--python={PYTHONS[tensorflow]}"),
            *options,
            *("--", "--epochs=3", "--examples=480", f"--iterate={way}"),
        )
        assert trained.code == 0, trained.complaint()
        return trained

    return train


# -- the shipped spec ------------------------------------------------------------------------------


def test_the_spec_trains_to_95_percent_and_both_workers_print_the_same(first: Trained) -> None:
    assert first.state["warnings"] == []
    lines = [first.said(task, r"^(?:epoch|test) .*") for task in TASKS]
    assert lines[0] == lines[1]
    assert [line.split()[0] for line in lines[0]] == ["epoch"] * 4 + ["test"] * 2
    (accuracy,) = first.said("worker:0", r"^test accuracy (\S+)")
    assert float(accuracy) >= 0.95


def test_the_start_lines_show_the_data_and_the_dtypes(first: Trained) -> None:
    (start,) = first.said("worker:1", r"^custom_loop: .*")
    assert (
        "synthetic_digits (synthetic data; --dataset mnist for real data) · worker:1 of 2" in start
    )
    assert "global batch 96 on 2 replicas" in start
    assert first.said("worker:1", r"^the model (.*)") == [
        "computes in float32, keeps float32 variables"
    ]


def test_the_page_shows_what_is_printed(first: Trained) -> None:
    assert unprinted("tutorials/custom_loop.md", "epoch 4", first.out) == []


def test_a_checkpoint_is_kept_every_second_epoch(first: Trained) -> None:
    assert [checkpoint["step"] for checkpoint in first.state["checkpoints"]] == [250, 500]


def test_steps_and_speed_are_reported_without_a_callback(first: Trained) -> None:
    for task in TASKS:
        last = first.of("progress", task)[-1]
        assert (last["step"], last["epoch"]) == (500, 4)
        assert (last["total_steps"], last["epochs"]) == (500, 4)
    figures = first.state["figures"]
    examples = figures["mean_steps_per_second"] * 96
    assert figures["mean_examples_per_second"] == pytest.approx(examples, rel=0.01)


def test_the_checkpoint_has_the_same_accuracy_without_any_strategy(
    first: Trained, lab: Lab, tmp_path: Path
) -> None:
    moved = shutil.copytree(first.folder / "checkpoints", tmp_path / "copy")
    evaluate = ("-m", "tfcluster_workers.jobs.evaluate", str(moved), "--model=fashion_cnn")
    done = subprocess.run(
        [PYTHONS["newest"], *evaluate], env=lab.line.env, capture_output=True, text=True, check=True
    )
    (accuracy,) = first.said("worker:0", r"^test accuracy .*")
    assert accuracy in done.stdout.splitlines()
    (loss,) = first.said("worker:0", r"^test loss (\S+)")
    (alone,) = (line for line in done.stdout.splitlines() if line.startswith("test loss "))
    assert float(alone.split()[-1]) == pytest.approx(float(loss), abs=1e-4)


# -- the same numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensorflow", "way", "keras"),
    [
        ("newest", "for", "keras 3."),
        ("newest", "function", "tf_keras 2."),
        ("tf215", "steps", "keras 2.15"),
    ],
)
def test_every_keras_and_way_to_iterate_has_the_losses_of_one_process(
    small: Small, tensorflow: str, way: str, keras: str
) -> None:
    more = ["--set=keras.version=2"] if keras.startswith("tf_keras") else []
    trained = small(tensorflow, way, *more)
    (start,) = trained.said("worker:0", r"^custom_loop: .*")
    assert f", {keras}" in start
    alone = small("tf215", "for", "--set=cluster.worker=1")
    assert len(alone.losses()) == 3
    for task in TASKS:
        assert trained.losses(task) == pytest.approx(alone.losses(), abs=1e-4)


def test_steps_of_one_call_are_reported_together(small: Small) -> None:
    trained = small("tf215", "steps", "--set=keras.steps_per_execution=5")
    assert trained.state["warnings"] == []
    reported = trained.of("progress", "worker:0")
    assert {event["step"] for event in reported} <= {5, 10, 15}
    assert trained.losses() == small("tf215", "steps").losses()


# -- preemption ------------------------------------------------------------------------------------


def test_a_preempted_worker_loses_no_step(small: Small) -> None:
    """The SIGTERM comes in the middle of the second epoch, which ends with the same result."""
    trained = small("newest", "steps", "--chaos=term worker:1 at step 7")
    exits = [(e["task"], e["exit_code"]) for e in trained.of("task_exited") if e["attempt"] == 1]
    assert sorted(exits) == [("worker:0", 42), ("worker:1", 42)]
    (restart,) = trained.of("restarting")
    assert "preempted" in restart["reason"]
    assert unprinted("tutorials/custom_loop.md", "injected fault", trained.err) == []
    assert unprinted("tutorials/custom_loop.md", "resuming after", trained.out) == []
    step = restart["from_step"]
    assert 7 <= step < 10
    for task in TASKS:
        assert trained.said(task, r"^resuming after step (\d+)") == [str(step)]
        attempt_2 = [e["step"] for e in trained.of("progress", task) if e["attempt"] == 2]
        assert attempt_2[0] == step + 1
    undisturbed = small("tf215", "steps")
    assert trained.losses() == pytest.approx(undisturbed.losses(), abs=1e-4)
    assert trained.said("worker:0", r"^test accuracy (\S+)") == undisturbed.said(
        "worker:0", r"^test accuracy (\S+)"
    )
