"""The job `broken` fails with the messages that its documentation page explains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.documentation import unprinted

from .lab import SPECS, Lab, Trained, a_lab

JOB = Path(__file__).parents[3] / "workers/tfcluster_workers/jobs/broken.py"
WRONG_LINE = 1 + JOB.read_text().splitlines().index("            logits = images @ weights")

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab() as lab:
        yield lab


@pytest.fixture(scope="module")
def broken(lab: Lab) -> Trained:
    """The result of `tfcluster up cluster_specs/broken-2w.json`."""
    return lab.train("up", str(SPECS / "broken-2w.json"))


def test_the_run_fails_after_19_steps_of_both_workers(broken: Trained) -> None:
    assert broken.code == 1, broken.complaint()
    for task in ("worker:0", "worker:1"):
        steps = broken.said(task, r"^step (\d+)  loss")
        assert steps == [str(step) for step in range(1, 20)]


def test_the_root_cause_is_worker_1_with_its_exception_and_the_line_of_the_job(
    broken: Trained,
) -> None:
    (diagnosis,) = broken.of("diagnosis")
    cause = diagnosis["root_cause"]
    assert cause["task"] == "worker:1"
    assert "root cause: worker:1, exit 1" in broken.err
    said = " ".join(broken.err.split())
    assert "ValueError: Dimensions must be equal, but are 756 and 784 for" in said
    assert f"(broken.py:{WRONG_LINE})" in said
    (error,) = broken.of("task_error", "worker:1")
    assert (Path(error["file"]).name, error["line"]) == (JOB.name, WRONG_LINE)


def test_worker_0_is_collateral_or_stopped_whatever_it_printed(broken: Trained) -> None:
    """A race decides: worker:0 fails within a second of its peer's exit, or is stopped first.

    Stopped, it may have told of its error by then.
    """
    assert "worker:1  exit 1 (cause)" in broken.err
    (diagnosis,) = broken.of("diagnosis")
    (ended,) = broken.of("task_exited", "worker:0")
    if ended["ended_by"] == "itself":
        assert broken.said("worker:0", "Collective ops is aborted"), "it hides the root cause"
        assert diagnosis["collateral"] == ["worker:0"]
        assert "worker:0  exit 1 (collateral)" in broken.err
    else:
        assert {*diagnosis.get("collateral", [])} <= {"worker:0"}
        assert "worker:0  stopped: " in broken.err


def test_the_page_shows_what_is_printed(broken: Trained) -> None:
    assert unprinted("tutorials/broken.md", "root cause", broken.out, broken.err) == []
    (ended,) = broken.of("task_exited", "worker:0")
    if ended["ended_by"] == "itself":  # else it may have been stopped before its error
        assert unprinted("tutorials/broken.md", "UnavailableError: Graph", broken.out) == []


def test_the_run_is_not_restarted_and_the_message_says_so(broken: Trained) -> None:
    assert broken.of("restarting") == []
    assert "Not restarted" in broken.err
