"""On a real cluster `doctor` and `up` find what would stop a job; nodes can be in containers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.documentation import unprinted
from tests.integration.hosts.office import until
from tests.lab.slurm import SlurmCluster

from .site import Site

pytestmark = pytest.mark.slow
TWO = ("salloc", "--nodes=2")
PLAIN = ("--python", "/usr/bin/python3")  # without TensorFlow, so that --deep takes no seconds


def test_doctor_examines_the_scheduler_and_with_deep_the_nodes(site: Site) -> None:
    spec = site.spec(runtime={"slurm": {"time": "1h"}})
    run = site.start("doctor", str(spec), "--backend", "slurm")
    assert run.end() == 0, run.said
    assert "Slurm would start the job now on n[1-2] in partition main" in run.said
    run = site.start("doctor", "--backend=slurm", "--deep", *PLAIN, str(spec))
    assert run.end() == 0, run.said
    assert "1 of 1 reached" in run.said
    until(lambda: site.cluster("squeue", "--noheader") == "", "the end of its job")
    assert not (site.cluster.home(site.user) / ".local/state/tfcluster/runs").exists()


def test_a_job_that_would_wait_for_ever_is_refused(site: Site) -> None:
    spec = site.spec(runtime={"backend": "slurm"})
    wanted = {
        "partition=mian": "--set runtime.slurm.partition=main",
        "cpus_per_task=9": "0 of the 3 nodes of partition main have 9 cores (most: 4)",
    }
    said_by: dict[tuple[str, str], str] = {}
    for change, said in wanted.items():
        for command in ("doctor", "up"):
            run = site.start(command, str(spec), "--set", f"runtime.slurm.{change}")
            assert run.end() == 3, run.said
            assert said in run.said
            said_by[command, change] = run.said
    shown = said_by["doctor", "cpus_per_task=9"]
    assert unprinted("guides/slurm.md", "nodes of partition main have", shown) == []
    short = ("doctor", str(spec), "--set", "runtime.slurm.partition=short")
    with hidden(site.cluster, "short"):
        run = site.start(*short, "--set", "runtime.slurm.time=5m")
        assert run.end() == 3
        assert "a job in partition short runs for at most 1m, not 5m" in run.said
        run = site.start(*short, "--set", "runtime.slurm.time=1m")
        assert run.end() == 0, run.said
        assert "Slurm would start the job now on n[1-2] in partition short" in run.said
    assert site.cluster("squeue", "--noheader") == ""


@contextmanager
def hidden(cluster: SlurmCluster, partition: str) -> Iterator[None]:
    """Hide a partition from the lists that users see."""
    change = ("scontrol", "update", f"PartitionName={partition}")
    cluster(*change, "Hidden=YES", user="root")
    try:
        yield
    finally:
        cluster(*change, "Hidden=NO", user="root")


@contextmanager
def wrong_name(cluster: SlurmCluster, node: str, name: str) -> Iterator[None]:
    """Let a node take `name` for itself, as with a copy of the other's /etc/hosts on Debian."""
    hosts = cluster.lab.machines[node].folder / "etc/hosts"
    before = hosts.read_text()
    hosts.write_text(re.sub(rf"\S+ {name}$", f"127.0.1.1 {name}", before, flags=re.MULTILINE))
    try:
        yield
    finally:
        hosts.write_text(before)


def test_a_peer_whose_name_is_loopback_is_found_before_the_start(site: Site) -> None:
    spec = site.spec()
    with wrong_name(site.cluster, "n2", "n1"):
        run = site.up(spec, within=TWO)
        assert run.end() == 3
    assert "n1 is 127.0.1.1 on this node" in run.said
    assert "correct the name there (/etc/hosts, DNS)" in run.said
    assert "line 0" not in run.said


def test_everything_on_a_node_runs_in_a_container_s_command(site: Site) -> None:
    stub = site.write(
        "apptainer",
        '#!/bin/sh\n[ "$1 $2" = "exec --nv" ] && APPTAINER_CONTAINER=$3 && shift 3 || exit 255\n'
        'export APPTAINER_CONTAINER\nexec "$@"\n',
    )
    stub.chmod(0o755)
    wrap = [str(stub), "exec", "--nv", "tf.sif"]
    spec = site.spec(
        "import os; print(os.environ['APPTAINER_CONTAINER'], os.uname().nodename)",
        runtime={"wrap": wrap, "python": "/usr/bin/python3"},
    )
    run = site.up(spec, within=TWO)
    assert run.end() == 0, run.said
    assert {"tf.sif n1", "tf.sif n2"} <= {line.partition("│ ")[2] for line in run.said.splitlines()}

    run = site.up(
        spec, "--set", f"runtime.wrap.0={Path(stub).with_name('singularity')}", within=TWO
    )
    assert run.end() == 3
    assert "or correct runtime.wrap" in run.said
