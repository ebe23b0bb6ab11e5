"""An agent without a coordinator has Slurm start the job again, in the words of Slurm 22.05.8."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tfcluster.agent.node import slurm_job

_JOB = (
    "JobId=7 JobName=x JobState={state} Reason=None Requeue=1 Restarts={restarts} BatchFlag={batch}"
    " NodeList={nodes} BatchHost=n1"
)
_FACTS = {"state": "RUNNING", "restarts": "0", "batch": "1", "nodes": "n2"}
Slurm = Callable[..., list[str]]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Return a function that sets what Slurm knows, and returns what it was told to do so far."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    told = tmp_path / "told"

    def know(**changes: str) -> list[str]:
        facts = {**_FACTS, **changes}
        script = f"""#!/bin/sh
case "$1 $2" in
"show job") echo "{_JOB.format(**facts)}" ;;
"show hostnames") echo {facts["nodes"]} | tr , '\\n' ;;
*) echo "$@" >>{told}; {facts.get("requeues", "true")} ;;
esac
"""
        (tmp_path / "scontrol").write_text(script)
        (tmp_path / "scontrol").chmod(0o755)
        return told.read_text().splitlines() if told.exists() else []

    return know


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"nodes": "n1,n2"}, None),  # its script runs, as far as slurmctld knows
        ({"requeues": "false"}, None),  # slurmctld is busy
        ({"state": "COMPLETING"}, False),
        ({"restarts": "1", "nodes": "n2"}, False),
        ({"batch": "0"}, False),  # salloc: there is nothing that could run again
    ],
)
def test_a_job_is_queued_again_if_it_has_lost_the_node_of_its_script(
    slurm: Slurm, changes: dict[str, str], expected: bool | None
) -> None:
    slurm(**changes)
    assert slurm_job.restart_if_orphaned("7", 0) is expected
    assert (slurm() == ["requeue 7"]) == (expected or "requeues" in changes)


def test_a_watch_ends_with_the_connection_of_a_coordinator_that_lives(slurm: Slurm) -> None:
    slurm(nodes="n1,n2")
    reader, writer = os.pipe()
    os.close(writer)
    slurm_job.watch("7", 0, reader)
    os.close(reader)
    assert slurm() == []


def test_there_is_no_slurm_in_a_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm_job.restart_if_orphaned("7", 0) is False
