"""A script of `tfcluster export --format sbatch`, submitted by hand, runs and resumes the job."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.integration.hosts.office import import_path, until
from tests.lab.slurm import PATH

from .site import Site

pytestmark = pytest.mark.slow

TALK = """
import os
print("cluster", os.environ["TF_CONFIG"], "key", os.environ["API_KEY"], flush=True)
"""
SAVE = """
import os, pathlib, struct, time
folder = pathlib.Path(os.environ["TFCLUSTER_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
if found := sorted(path.name for path in folder.glob("*.index")):
    print("resumed from", found, flush=True)
else:
    (folder / "ckpt-5.data-00000-of-00001").write_text("weights")
    (folder / "ckpt-5.index").write_bytes(struct.pack("<Q", 0xDB4775248B80FB57))
    (folder / "checkpoint").write_text('model_checkpoint_path: "ckpt-5"')
    print("saved", flush=True)
    time.sleep(600)
"""


def submit(site: Site, script: str, **sections: Any) -> str:
    """Export a spec and submit the script, both as a user does; return the job's id."""
    spec = site.spec(script, **sections)
    exported = site.start("export", str(spec), "--format", "sbatch", "-o", "far.sbatch")
    assert exported.end() == 0, exported.said
    env = {"PATH": f"{Path(sys.executable).parent}:{PATH}", "PYTHONPATH": import_path()}
    done = site.cluster.run(
        ["sbatch", "--parsable", "far.sbatch"],
        user=site.user,
        cwd=site.desk,
        env={**env, "API_KEY": "sesame"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def log(site: Site, job: str) -> str:
    path = site.desk / f"far-{job}.log"
    return path.read_text() if path.exists() else ""


def test_a_submitted_script_runs_the_tasks_on_the_nodes_of_its_job(site: Site) -> None:
    plain = {"script": "train.py", "hooks": "off", "secrets": ["API_KEY"]}
    job = submit(site, TALK, job=plain, runtime={"slurm": {"time": "5m", "partition": "main"}})
    assert site.cluster.wait_for_job(job) == "COMPLETED", log(site, job)
    configs = re.findall(r"worker:\d │ cluster ({.*}) key \*+", log(site, job))
    workers = {tuple(json.loads(config)["cluster"]["worker"]) for config in configs}
    assert len(configs) == 2
    ((first, second),) = workers
    assert first.rpartition(":")[0] != second.rpartition(":")[0], "two nodes"
    (run,) = (site.cluster.home(site.user) / ".local/state/tfcluster/runs").glob("far-*")
    assert run.name.startswith(f"far-{job}-")


def test_a_requeued_script_resumes_from_what_its_job_has_gathered(site: Site) -> None:
    job = submit(site, SAVE, job={"script": "train.py", "hooks": "off"})
    runs = site.cluster.home(site.user) / ".local/state/tfcluster/runs"

    def has_gathered() -> bool:
        return any(
            "checkpoint_gathered" in file.read_text() for file in runs.glob("*/events.jsonl")
        )

    until(has_gathered, "a gathered checkpoint")
    site.cluster("scontrol", "requeue", job, user=site.user)
    state = site.cluster.wait_for_job(job, "COMPLETED", "FAILED", "CANCELLED", hang_s=100)
    assert state == "COMPLETED", log(site, job)
    assert site.cluster.job(job)["Restarts"] == "1"
    assert log(site, job).count("resumed from ['ckpt-5.index']") == 2
