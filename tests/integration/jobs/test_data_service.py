"""Training goes on when a task of its tf.data service dies, and that goes on when a worker dies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.documentation import unprinted

from .lab import PYTHONS, SPECS, Lab, Trained, a_lab

# Five TensorFlow processes at a time on two busy cores.
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

SERVERS = ("data_worker:0", "data_worker:1", "data_dispatcher:0")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab() as made:
        yield made


@pytest.fixture(scope="module")
def trained(lab: Lab) -> Trained:
    """A run with a task of each kind killed; epochs of ten steps, a checkpoint after each."""
    kills = ("data_worker:0 at step 3", "data_dispatcher:0 at step 6", "worker:1 at step 14")
    options = (f"--python={PYTHONS['newest']}", "--set=supervision.backoff_s=0")
    faults = [f"--chaos=kill {kill}" for kill in kills]
    job = ("--steps=10", "--epochs=3", "--wait-ms=100", "--examples=960")
    return lab.train("up", str(SPECS / "data-service.json"), *options, *faults, "--", *job)


def test_each_task_of_the_service_restarts_alone_and_the_workers_together(
    trained: Trained,
) -> None:
    assert trained.code == 0, trained.complaint()
    restarts = [(e.get("task"), e["attempt"], e.get("from_step")) for e in trained.of("restarting")]
    assert restarts == [("data_worker:0", 2, None), ("data_dispatcher:0", 2, None), (None, 3, 10)]
    starts = {
        task["task"]: len(trained.of("task_started", task["task"])) for task in _tasks(trained)
    }
    assert starts == dict(zip(("worker:0", "worker:1", *SERVERS), (2, 2, 2, 1, 2), strict=True))
    assert [fault["fault"].split()[1] for fault in trained.state["chaos"]] == [
        "data_worker:0",
        "data_dispatcher:0",
        "worker:1",
    ]


def test_it_ends_with_the_run_at_the_addresses_it_began_with(trained: Trained) -> None:
    for task in SERVERS:
        assert trained.of("task_exited", task)[-1]["ended_by"] == "tfcluster"
    (dispatcher,) = (t["address"] for t in _tasks(trained) if t["task"] == SERVERS[-1])
    named = trained.said("worker:[01]", r"^batches from grpc://(.*)")
    assert named == [dispatcher] * 4
    assert unprinted("tutorials/data_service.md", "batches from", trained.out, trained.err) == []


def test_the_workers_train_on_different_batches(trained: Trained) -> None:
    assert trained.reports("worker:0")[-1]["step"] == 30
    assert trained.state["alerts"] == {}


def _tasks(trained: Trained) -> list[dict[str, str]]:
    tasks: list[dict[str, str]] = trained.state["tasks"]
    return tasks
