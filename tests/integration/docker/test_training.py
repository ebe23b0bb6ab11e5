"""An example spec trains in containers to the same losses as in local processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.jobs.lab import PYTHONS, SPECS, Lab, Trained, a_lab
from tests.lab.docker_images import WORKER
from tests.lab.dockerd import Docker

from .harbor import Harbor

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow, pytest.mark.timeout(900)]

SPEC = str(SPECS / "localhost-2w.json")
NUMBERS = r"^(?:epoch \d+ loss|test loss|test accuracy) (\S+)"


@pytest.fixture
def lab(worker_docker: Docker) -> Iterator[Lab]:
    with a_lab() as made:
        harbor = Harbor(made.line, worker_docker)
        yield made
        if left := harbor.left():
            harbor.clear()
        assert left == []


def numbers(run: Trained) -> dict[str, list[float]]:
    tasks = [task["task"] for task in run.state["tasks"]]
    return {task: [float(number) for number in run.said(task, NUMBERS)] for task in tasks}


def test_an_example_spec_trains_as_in_local_processes(lab: Lab) -> None:
    args = ("--", "--epochs", "2", "--examples", "960")
    here = lab.train("up", SPEC, "--python", str(PYTHONS["newest"]), *args)
    assert here.code == 0, here.complaint()
    image = ("--set", f"runtime.image={WORKER}")
    there = lab.train("up", SPEC, "--backend", "docker", *image, *args)
    assert there.code == 0, there.complaint()

    expected, found = numbers(here), numbers(there)
    assert sum(map(len, expected.values())) >= 2, here.complaint()
    assert found.keys() == expected.keys()
    for task, values in expected.items():
        assert found[task] == pytest.approx(values, rel=1e-4), task

    assert len(there.of("checkpoint_gathered")) == len(here.of("checkpoint_gathered")) > 0
    newest = there.of("checkpoint_gathered")[-1]
    assert list(there.folder.glob(f"{newest['path']}*")), there.complaint()
