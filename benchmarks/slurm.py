"""The time from submitting a TensorFlow job to Slurm to its first step, compared with a script."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path

from benchmarks.harness import Arm, Claim, Failed, Metric, Quantity, Taken
from benchmarks.launchers import ROOT
from benchmarks.sandbox import HANG_S, TFCLUSTER
from benchmarks.trainings import SCRIPT
from tests.lab.slurm import SlurmCluster

NODES = 2
_BY_HAND = """\
#!/bin/sh
#SBATCH --nodes={nodes} --ntasks-per-node=1 --output=job.log
export LIST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed 's/.*/"&:4000"/' | paste -sd,)
export TF_USE_LEGACY_KERAS=1
srun sh -c 'TF_CONFIG="{{\\"cluster\\": {{\\"worker\\": [$LIST]}}, \
\\"task\\": {{\\"type\\": \\"worker\\", \\"index\\": $SLURM_PROCID}}}}" \
exec {python} train.py first'
"""


@cache
def _cluster() -> SlurmCluster:
    """Start a cluster of Slurm; it ends with this process."""
    stack = ExitStack()
    atexit.register(stack.close)
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/var/tmp"))
    folder.chmod(0o755)  # users read slurm.conf below it
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return stack.enter_context(SlurmCluster(folder / "cluster", cpus=(2,) * NODES))


def _take(command: list[str], *, venv: str) -> Taken:
    """Measure until the last worker's first step; then wait for the job's end."""
    cluster, python = _cluster(), str(ROOT / venv / "bin" / "python")
    folder = Path(tempfile.mkdtemp(dir=cluster.home("root")))
    shutil.copy(SCRIPT, folder)
    (folder / "job.sh").write_text(_BY_HAND.format(nodes=NODES, python=python))
    spec = {
        "name": "b",
        "cluster": {"worker": NODES},
        "job": {"script": SCRIPT.name, "args": ["first"], "env": {"TF_USE_LEGACY_KERAS": "1"}},
        "runtime": {"backend": "slurm", "python": python},
    }
    (folder / "bench.json").write_text(json.dumps(spec))
    began = time.monotonic()
    env = {"TFCLUSTER_HOME": str(folder / "home"), "TF_CPP_MIN_LOG_LEVEL": "1"}
    done = cluster.run(command, user="root", cwd=folder, env=env, timeout=HANG_S)
    stamps = [path.read_text().split() for path in folder.glob("step-0-*")]
    if done.returncode or len(stamps) != NODES:
        log = folder / "job.log"
        raise Failed(done.stdout + done.stderr + (log.read_text() if log.exists() else ""))
    cluster.wait_for_nodes("idle")
    return {"until": max(float(stamp[1]) for stamp in stamps) - began}


def first_step(*, quick: bool, venv: str) -> Metric:
    """Return the metric; it needs root, and starts a cluster of its own."""
    by_hand = partial(_take, ["sbatch", "--wait", "job.sh"], venv=venv)
    ours = partial(_take, [TFCLUSTER, "up", "bench.json"], venv=venv)
    arm, beside = "tfcluster up", "sbatch, by hand"
    return Metric(
        title=f"A job of Slurm on {NODES} nodes: from Enter until all have done their first step",
        quantities={"until": Quantity("s")},
        arms={
            beside: Arm(by_hand, "sbatch job.sh, which makes TF_CONFIG and runs srun"),
            arm: Arm(ours, "tfcluster up bench.json"),
        },
        claims=[Claim("tfcluster : by hand", "until", arm, beside, at_most=1.15, stretch=1.0)],
        note=f"One slurmctld and {NODES} slurmd on this machine, whose {os.cpu_count()} cores the "
        "nodes share.",
    )
