"""Real training in a job of Slurm gives the same numbers as the same spec on one machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.hosts.office import Run
from tests.integration.jobs.lab import PYTHONS, SPECS
from tests.integration.profiled import FIT_NOTEBOOK, check_profile

from .site import Site

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

SMALL = ("--", "--epochs=2", "--examples=960")
HANG_S = 240.0


def numbers(run: Run) -> Iterator[float]:
    """Yield loss and accuracy of every epoch, as the chief reported them."""
    for event in run.events():
        if event["type"] == "progress" and event["task"] == "worker:0" and event.get("metrics"):
            yield from (event["metrics"][name] for name in ("loss", "accuracy"))


def test_a_job_on_two_nodes_learns_what_two_local_workers_learn(site: Site) -> None:
    python = f"--python={PYTHONS['newest']}"
    spec = site.write("slurm-2n.json", (SPECS / "slurm-2n.json").read_text())
    runs = []
    for backend in ("slurm", "local"):
        options = (f"--backend={backend}", f"--name={backend}", python)
        run = site.up(spec, *options, *SMALL)
        run.name = backend
        assert run.end(HANG_S) == 0, run.said
        runs.append([*numbers(run)])
    far, here = runs
    assert len(far) >= 2 * 2
    assert far[-2:] == pytest.approx(here[-2:], abs=1e-4)


def test_a_profile_of_a_submitted_run_has_the_trace_of_every_node(site: Site) -> None:
    python = PYTHONS["newest"]
    site.write("train.ipynb", FIT_NOTEBOOK)
    spec = site.spec(job={"script": "train.ipynb"}, supervision={"grace_s": 2})
    run = site.up(spec, "--backend=slurm", f"--python={python}")
    run.wait_for_event("progress", HANG_S)
    asked = site.start("profile", "--steps=4", "--json")
    assert asked.end(HANG_S) == 0, asked.said
    check_profile(asked.said, run.folder, python, steps=4)
    stopped = site.start("down")
    assert stopped.end(HANG_S) == 0, stopped.said
    assert run.end(HANG_S) == 143, run.said
