"""The example specs train in containers to the same losses as in local processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.commandline import wait_for
from tests.integration.jobs.lab import PYTHONS, SPECS, Lab, Trained, a_lab
from tests.integration.live import Live
from tests.lab.dockerd import Docker

from .harbor import Harbor, of_type

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow, pytest.mark.timeout(900)]

KERAS = r"^(?:epoch \d+ loss|test loss|test accuracy) (\S+)"
CELLS = {
    "localhost-2w": ("newest", ["--epochs", "2", "--examples", "960"], KERAS),
    "localhost-4w": ("newest", ["--epochs", "1", "--examples", "960"], KERAS),
    "estimator-2w-evaluator": (
        "tf215",
        ["--max-steps", "60"],
        r"^(?:evaluated step 60 loss|test accuracy) (\S+)",
    ),
}
"""Example spec → TensorFlow, arguments of the job, pattern of the numbers that it prints."""


@pytest.fixture
def lab(worker_docker: Docker) -> Iterator[Lab]:
    with a_lab() as made:
        harbor = Harbor(made.line, worker_docker)
        yield made
        if left := harbor.left():
            harbor.clear()
        assert left == []


def numbers(run: Trained, pattern: str) -> dict[str, list[float]]:
    tasks = run.state["tasks"]
    return {task["task"]: [float(n) for n in run.said(task["task"], pattern)] for task in tasks}


@pytest.mark.parametrize("name", CELLS)
def test_an_example_spec_trains_as_in_local_processes(lab: Lab, name: str) -> None:
    which, args, pattern = CELLS[name]
    spec = str(SPECS / f"{name}.json")
    here = lab.train("up", spec, "--python", str(PYTHONS[which]), "--", *args)
    assert here.code == 0, here.complaint()
    image = f"runtime.image=tfcluster-tests:{which}"
    there = lab.train("up", spec, "--backend", "docker", "--set", image, "--", *args)
    assert there.code == 0, there.complaint()

    expected = numbers(here, pattern)
    assert sum(map(len, expected.values())) >= 2, here.complaint()
    found = numbers(there, pattern)
    assert found.keys() == expected.keys()
    for task, values in expected.items():
        assert found[task] == pytest.approx(values, rel=1e-4), task

    assert len(there.of("checkpoint_gathered")) == len(here.of("checkpoint_gathered")) > 0
    newest = there.of("checkpoint_gathered")[-1]
    assert list(there.folder.glob(f"{newest['path']}*")), there.complaint()


def test_a_worker_taken_off_the_network_costs_the_steps_since_the_last_checkpoint(
    lab: Lab, worker_docker: Docker
) -> None:
    """TensorFlow's own heartbeats end the gang; then the container is on the network again."""
    image = "runtime.image=tfcluster-tests:newest"
    args = ("--backend", "docker", "--set", image, "--set", "supervision.backoff_s=0")
    spec = str(SPECS / "localhost-2w.json")
    run = Live(lab.line, "up", spec, *args, "--", "--epochs", "3")
    wait_for(
        lambda: run.has_line("epoch 1 loss", "worker:0") or run.is_over(),
        what="the first epoch",
        timeout=300,
    )
    wait_for(lambda: of_type(run, "checkpoint_gathered"), what="its checkpoint", timeout=200)
    worker_docker("network", "disconnect", run.run_id, f"{run.run_id}-worker-1")
    assert run.end(400) == 0, run.said()
    (restarting,) = of_type(run, "restarting")
    assert restarting["attempt"] == 2
    assert restarting["from_step"] > 0
    (cause,) = (event["root_cause"] for event in of_type(run, "diagnosis"))
    assert (cause["kind"], cause["node"]) == ("link_lost", "worker-1"), cause
    assert "was taken off the network" in " ".join(run.said().split())
    assert "test accuracy" in run.log("worker:0", attempt=2)
