"""The ready specs in containers, with the losses of the same specs in processes of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.jobs.lab import PYTHONS, SPECS, Lab, Trained, a_lab
from tests.lab.dockerd import Docker

from .harbor import Harbor

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow, pytest.mark.timeout(900)]

KERAS = r"^(?:epoch \d+ loss|test loss|test accuracy) (\S+)"
CELLS = {
    "localhost-2w": ("newest", ["--epochs", "2"], KERAS),
    "localhost-4w": ("newest", ["--epochs", "1"], KERAS),
    "estimator-2w-evaluator": (
        "tf215",
        ["--max-steps", "60"],
        r"^(?:evaluated step 60 loss|test accuracy) (\S+)",
    ),
}
"""Ready spec → TensorFlow, arguments of the job, where it tells numbers."""


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
def test_a_ready_spec_trains_as_it_does_here(lab: Lab, name: str) -> None:
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
