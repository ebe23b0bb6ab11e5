"""Runs in jobs and with names that a user of Slurm would not expect to work, or not to."""

from __future__ import annotations

import json
import shlex
import sys

from tests.integration.hosts.office import Run, import_path, until

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


SHOW = """
import json, os, socket, time
while os.environ.get("RELEASE") and not os.path.exists(os.environ["RELEASE"]):
    time.sleep(0.05)
names = ("SLURM_JOB_PARTITION", "SLURM_CPUS_ON_NODE")
print(json.dumps([socket.gethostname(), *map(os.environ.get, names)]))
"""
ROLES = {"worker": {"slurm": {"partition": "high", "cpus_per_task": 2, "gpus_per_task": 0}}}


def shown(run: Run, *tasks: str, attempt: int = 1) -> list[list[str]]:
    return [json.loads(run.log(task, attempt).splitlines()[0]) for task in tasks]


def test_roles_run_on_the_nodes_of_a_heterogeneous_job_also_after_a_requeue(site: Site) -> None:
    cluster = {"chief": 1, "worker": 2, "evaluator": 1}
    runtime = {"slurm": {"partition": "main"}, "roles": ROLES}
    spec = site.spec(SHOW, lasts=True, cluster=cluster, runtime=runtime)
    run = site.up(spec, "--backend", "slurm")
    started = until(lambda: len(run.of_type("task_started")) == 4 and run.state(), "all tasks")
    job = started["job"]["id"]
    jobs = site.cluster("squeue", "--noheader", "--format=%i %P %D", "--sort=i").splitlines()
    assert sorted(map(str.split, jobs)) == [[f"{job}+0", "main", "1"], [f"{job}+1", "high", "2"]]
    site.cluster("scontrol", "requeue", job, user="ann")
    until(lambda: len(run.of_type("task_started")) == 8, "all tasks again")
    site.release()
    assert run.end() == 0, run.said
    assert "only worker" in run.said
    own = shown(run, "worker:0", "worker:1", attempt=2)
    assert [each[1:] for each in own] == [["high", "2"]] * 2
    (chief, evaluator) = shown(run, "chief:0", "evaluator:0", attempt=2)
    assert chief == evaluator == [chief[0], "main", "2"], "one core for each of the two"
    assert len({chief[0], *(each[0] for each in own)}) == 3


def test_roles_use_the_components_of_an_allocation_and_no_nodes_of_another(site: Site) -> None:
    spec = site.spec(SHOW, cluster={"chief": 1, "worker": 2}, runtime={"roles": ROLES})
    run = site.up(spec, within=["salloc", "-N1", ":", "-N2", "-phigh"])
    assert run.end() == 0, run.said
    assert [each[1] for each in shown(run, "worker:0", "worker:1")] == ["high"] * 2
    other = site.spec(SHOW)
    refused = site.up(other, within=["salloc", "-N1", ":", "-N1"])
    assert refused.end() == 3
    assert "has 2 components, and the roles of the spec need 1" in " ".join(refused.said.split())
