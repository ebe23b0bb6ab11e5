"""Runs in jobs and with names that a user of Slurm would not expect to work, or not to."""

from __future__ import annotations

import shlex
import sys

from tests.integration.hosts.office import import_path, until

from .site import STUBBORN, Site


def test_a_home_with_any_name_and_a_user_s_own_defaults_of_sbatch(site: Site) -> None:
    home = site.cluster.home("ann") / """o'd "d%j $(id) ;"""
    theirs = {"SBATCH_ARRAY_INX": "0-1", "SBATCH_COMMENT": "z", "SBATCH_OUTPUT": "/dev/null"}
    run = site.up(
        site.spec(count=1), "--backend", "slurm", env={**theirs, "TFCLUSTER_HOME": str(home)}
    )
    assert run.end() == 0, run.said
    (folder,) = (home / "runs").iterdir()
    assert (folder / "coordinator.log").exists()
    assert "succeeded" in run.said


def test_srun_does_not_start_a_run_for_each_of_its_tasks(site: Site) -> None:
    run = site.up(site.spec(count=1), within=["srun", "--nodes=2", "--ntasks=2"])
    assert run.end() == 3
    assert "srun starts 2 processes, and each would coordinate a run of its own" in run.said
    assert not list(site.cluster.home("ann").glob(".local/state/tfcluster/runs/*"))


def test_an_element_of_an_array_goes_back_into_the_queue_alone(site: Site) -> None:
    """The last element of an array has the array's own id."""
    script = f"""
import os, sys, time
sys.path[:0] = {import_path().split(":")!r}
from tfcluster.backends import jobs
own = jobs.own("slurm")
print(own.id, own.restarts, flush=True)
if own.restarts == 0 and own.id == os.environ["SLURM_ARRAY_JOB_ID"]:
    own.scheduler.requeue(own.id)
time.sleep(600)
"""
    path = site.write("own.py", script)
    command = shlex.join([sys.executable, str(path)])
    output = f"--output={site.desk}/%a.log"
    array = site.cluster.submit(
        command, "--array=0-1", "--requeue", "--open-mode=append", "-n1", output
    )
    last, first = site.desk / "1.log", site.desk / "0.log"
    until(lambda: last.exists() and last.read_text().split()[-2:] == [array, "1"], "the restart")
    until(lambda: first.exists() and first.read_text().endswith("\n"), "the other element")
    assert first.read_text().split()[1::2] == ["0"]
    site.cluster("scancel", array)


def test_a_run_that_is_being_stopped_does_not_come_back_by_a_requeue(site: Site) -> None:
    up = site.up(site.spec(STUBBORN), "--backend", "slurm")
    up.wait_for_line("deaf", "worker:0", "worker:1")
    down = site.start("down", up.folder.name)
    up.wait_for_event("run_stopping")
    (job,) = up.of_type("job_submitted")
    site.cluster("scontrol", "requeue", job["id"])
    assert down.end() == 0, down.said
    assert "has ended: interrupted" in down.said
    assert len(up.of_type("task_started")) == 2
    assert up.end() == 143
