"""An Estimator with parameter servers: tasks that still work outlive the chief."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .lab import PYTHONS, Trained, a_lab

# Five TensorFlow processes on two busy cores; Estimator starts its second worker after 10 s.
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).with_name("estimator_apart.py").read_text()
CLUSTER = {"chief": 1, "worker": 2, "ps": 1, "evaluator": 1}
STEPS = 300
PATIENT = {"supervision": {"finish_grace_s": 300}}
"""Time for the second worker, which starts when the chief has ended."""


@pytest.fixture(scope="module")
def trained() -> Iterator[Trained]:
    with a_lab() as lab:
        lab.line.script("train.py", SCRIPT)
        job = {"script": "train.py", "args": [str(STEPS)]}
        spec = {"version": 1, "name": "apart", "cluster": CLUSTER, "job": job} | PATIENT
        lab.line.script("apart.json", json.dumps(spec))
        yield lab.train("up", "apart.json", f"--python={PYTHONS['tf215']}")


def test_workers_that_start_after_the_chief_exited_finish_their_training(trained: Trained) -> None:
    assert trained.code == 0, trained.complaint()
    exits = {event["task"]: event for event in trained.of("task_exited")}
    for task in ("chief:0", "worker:0", "worker:1"):
        assert (exits[task]["exit_code"], exits[task]["ended_by"]) == (0, "itself")
        assert trained.said(task, "^all done$")
    assert trained.of("progress", "worker:1")[-1]["step"] >= STEPS


def test_the_ps_is_stopped_after_the_last_worker(trained: Trained) -> None:
    exits = trained.of("task_exited")
    (ps,) = (event for event in exits if event["task"] == "ps:0")
    assert ps["ended_by"] == "tfcluster"
    assert all(event["seq"] < ps["seq"] for event in exits if event["task"].startswith("worker"))


def test_the_evaluator_is_stopped_once_it_has_evaluated_the_last_checkpoint(
    trained: Trained,
) -> None:
    (stop,) = trained.of("task_stopping", "evaluator:0")
    assert stop["why"] == "it has evaluated the last checkpoint"
    warnings = trained.state["warnings"]
    assert not [warning for warning in warnings if "evaluator" in warning]
