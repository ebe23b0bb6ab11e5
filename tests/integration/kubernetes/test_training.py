"""Real training in pods gives the numbers of the same spec on one machine, disturbed or not."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.integration.commandline import wait_for
from tests.integration.jobs.lab import PYTHONS, SPECS
from tests.integration.live import InBackground, Live
from tests.integration.profiled import FIT_NOTEBOOK, check_profile

from .desk import Desk

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

SMALL = ("--", "--epochs=2", "--examples=960")
HANG_S = 240.0


def numbers(run: Live) -> list[float]:
    """Return loss and accuracy of the last epoch, as the chief reported them."""
    found = [*_reported(run)]
    assert len(found) >= 2 * 2, run.said()
    return found[-2:]


def _reported(run: Live) -> Iterator[float]:
    for event in run.events():
        if event["type"] == "progress" and event["task"] == "worker:0" and event.get("metrics"):
            yield from (event["metrics"][name] for name in ("loss", "accuracy"))


def learned(desk: Desk, *options: str) -> list[float]:
    path = desk.shell.cwd / "kubernetes-2n.json"
    path.write_text((SPECS / "kubernetes-2n.json").read_text())
    run = Live(desk.shell, "up", str(path), *options, *SMALL)
    assert run.end(HANG_S) == 0, run.said()
    return numbers(run)


def in_pods(desk: Desk, *options: str) -> list[float]:
    section = desk.runtime()["kubernetes"].items()
    sets = [
        f"--set=runtime.kubernetes.{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in section
    ]
    return learned(desk, *sets, *options)


def test_two_pods_learn_what_two_local_workers_learn(desk: Desk) -> None:
    python = f"--python={PYTHONS['newest']}"
    here = learned(desk, "--backend=local", python)
    assert in_pods(desk, python) == pytest.approx(here, abs=1e-4)
    kill = "--chaos=kill worker:1 at step 15"  # in the second of two epochs
    assert in_pods(desk, python, kill) == pytest.approx(here, abs=1e-4)
    assert desk.left() == []


def test_a_profile_of_pods_arrives_on_this_machine(desk: Desk) -> None:
    python = PYTHONS["newest"]
    desk.shell.script("fit.ipynb", FIT_NOTEBOOK)
    spec = desk.shell.cwd / "traced.json"
    made = {"cluster": {"worker": 2}, "job": {"script": "fit.ipynb"}, "runtime": desk.runtime()}
    spec.write_text(json.dumps({**made, "supervision": {"grace_s": 2}}))
    run = InBackground(desk.shell, "up", str(spec), f"--python={python}")

    def has_begun() -> bool:
        status = json.loads(desk.shell.run("status", run.id, "--json").out)
        return status["tasks"][1]["step"] is not None

    wait_for(has_begun, timeout=HANG_S, what="a step")
    asked = desk.shell.run("profile", run.id, "--steps", "4", "--json", timeout=HANG_S)
    assert asked.code == 0, asked.err
    check_profile(asked.out.decode(), run.folder, python, steps=4)
    run.down()
    assert desk.left() == []
