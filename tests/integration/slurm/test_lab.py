"""The tests' Slurm cluster does what real ones do, faults included, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.integration.commandline import wait_for
from tests.integration.docker.test_dockerd import links, traces
from tests.lab.machines import NETWORK
from tests.lab.slurm import HANG_S, LabError, SlurmCluster

from .conftest import own_cluster

pytestmark = pytest.mark.slow
NODES = ["n1", "n2", "n3"]


def step(cluster: SlurmCluster, job: str, node: str) -> subprocess.Popen[str]:
    """Start a step of the job on one node, as tfcluster does, and wait until it runs."""
    where = ["--overlap", f"--jobid={job}", "--no-kill", "-N1", "-n1", "-w", node, "--mem=0"]
    with (cluster.home("ann") / f"{node}.out").open("w") as out:
        process = cluster.start(["srun", *where, "sleep", "300"], stdout=out, stderr=out)
    wait_for(lambda: sleeps(cluster, node), what=f"a step on {node}")
    return process


def sleeps(cluster: SlurmCluster, node: str) -> bool:
    return any("sleep 300" in words for words in cluster.processes(node).values())


def allocated(cluster: SlurmCluster, *options: str) -> str:
    """Return a running job of ann's whose batch script starts nothing on n2 and n3."""
    job = cluster.submit("sleep 3600", "-N3", "--no-kill", *options)
    cluster.wait_for_job(job, "RUNNING")
    return job


@pytest.mark.parametrize("user", ["ann", "ben"])
def test_each_node_has_its_own_name_address_and_tmp(cluster: SlurmCluster, user: str) -> None:
    assert cluster.node_states() == dict.fromkeys(NODES, "idle")
    script = "touch /tmp/mine-$$ && echo $(hostname) $(hostname -I) $(ls /tmp | grep -c mine-$$)"
    said = cluster("srun", "-N3", "sh", "-c", f"{script} $(id -un) $PWD", user=user)
    expected = [f"n{n} {NETWORK}.{n} 1 {user} {cluster.home(user)}" for n in (1, 2, 3)]
    assert sorted(said.splitlines()) == expected


def test_users_share_their_homes_with_all_nodes_until_one_hides_them(tmp_path: Path) -> None:
    with own_cluster(cpus=(2, 1)) as cluster:
        assert cluster("sinfo", "-h", "-N", "-p", "main", "-o", "%N %c").split("\n") == [
            "n1 2",
            "n2 1",
        ]
        (cluster.home("ann") / "file").touch()
        assert cluster("srun", "-N2", "ls").split() == ["file", "file"]
        cluster.hide_homes("n2")
        assert cluster("srun", "-N2", "ls").split() == ["file"]


def test_a_killed_srun_takes_its_step_along_without_a_warning(cluster: SlurmCluster) -> None:
    process = step(cluster, allocated(cluster), "n2")
    os.kill(cluster.pids("srun")[0], signal.SIGKILL)
    assert process.wait(HANG_S) == -signal.SIGKILL
    wait_for(lambda: not cluster.processes("n2"), what="the end of the step")


def test_a_frozen_node_goes_down_and_its_srun_ends_with_success(cluster: SlurmCluster) -> None:
    job = allocated(cluster)
    frozen, other = step(cluster, job, "n2"), step(cluster, job, "n3")
    cluster.freeze("n2")
    cluster.wait_for_nodes("down", "n2")
    assert frozen.wait(HANG_S) == 0
    assert "Node failure on n2" in (cluster.home("ann") / "n2.out").read_text()
    assert sleeps(cluster, "n2"), "it was only stopped"
    assert other.poll() is None, "the job goes on"
    assert cluster.job(job)["JobState"] == "RUNNING"
    cluster.thaw("n2")
    cluster.wait_for_nodes("idle", "n2")
    cluster("scancel", job)
    other.wait(HANG_S)


def test_a_job_outlives_slurmctld_and_a_node(cluster: SlurmCluster) -> None:
    job = allocated(cluster)
    cluster.kill_controller()
    with pytest.raises(LabError, match="Unable to contact slurm controller"):
        cluster("squeue")
    cluster.start_controller()
    assert cluster("squeue", "-h", "-o", "%i %T") == f"{job} RUNNING"
    cluster.power_off("n3")
    cluster.wait_for_nodes("down", "n3")
    assert cluster.job(job)["JobState"] == "RUNNING"
    cluster.boot("n3")
    cluster.wait_for_nodes("idle", "n3")


def test_a_preempted_job_is_requeued(cluster: SlurmCluster) -> None:
    job = allocated(cluster, "--requeue")
    other = cluster.fill(3, "-p", "high")
    wait_for(lambda: cluster.job(other)["Reason"] == "Resources")
    cluster.wait_for_job(other, "RUNNING")
    assert cluster.job(job)["JobState"] == "PENDING"
    cluster("scancel", other, user="ben")
    cluster.wait_for_job(job, "RUNNING")
    assert cluster.job(job)["Restarts"] == "1"


def test_with_control_groups_a_daemon_ends_with_its_step() -> None:
    daemon = ["srun", "sh", "-c", "setsid sleep 300 > /dev/null 2>&1 &"]
    for proctrack, outlives in (("linuxproc", True), ("cgroup", False)):
        with own_cluster(cpus=(2,), proctrack=proctrack) as cluster:
            (node,) = cluster.names
            cluster(*daemon)
            cluster.wait_for_nodes("idle")
            assert sleeps(cluster, node) == outlives


def test_two_clusters_run_side_by_side_and_leave_nothing_behind(cluster: SlurmCluster) -> None:
    before = links()
    with own_cluster(cpus=(1,), proctrack="cgroup") as second:
        word, node = second.folder.name, second.names[0]
        second.submit("sleep 300")
        assert "sleep" not in cluster("squeue")
        assert links() == before
        wait_for(lambda: [*traces(f"slurm_{node}")], what="its control groups")
        assert [*traces(word)]
    wait_for(lambda: not [*traces(word)], what="nothing with its name")
    wait_for(lambda: not [*traces(f"slurm_{node}")], what="no control group of its node")
    assert links() == before
