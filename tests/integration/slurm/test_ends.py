"""Ends of a run's job that others decide: the run saves, and goes on where Slurm lets it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.integration.hosts.office import HANG_S, Run, until
from tests.integration.jobs.lab import PYTHONS
from tests.lab.slurm import SlurmCluster

from tfcluster.rundir.paths import RUN_ID

from .conftest import own_cluster
from .site import Site

pytestmark = pytest.mark.slow
TRAINING_S = 240.0
"""The longest wait for TensorFlow."""
SAVES = """
import os, signal, struct, sys, time
from tfcluster_workers import reporting

folder, step, asked = os.environ["TFCLUSTER_CHECKPOINT_DIR"], 0, []
step = int(os.environ.get("TFCLUSTER_RESTORED_STEP", 0))

def save():
    for suffix, end in (("data-00000-of-00001", b""), ("index", struct.pack("<Q", END))):
        with open(f"{folder}/ckpt-{step}.{suffix}", "wb") as file:
            file.write(f"step {step}".encode() + end)
    reporting.saved(f"{folder}/ckpt-{step}", step=step)

END = 0xDB4775248B80FB57
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
reporting.saves_on_sigterm()
print(f"begins at {step}", flush=True)
reporting.ready()
while not os.path.exists(os.environ["RELEASE"]):
    time.sleep(0.05)
    step += 1
    reporting.progress(step)
    if step % 20 == 0 or asked:
        save()
    if asked:
        print(f"saved {step}", flush=True)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(42)
"""
"""A job of 20 steps a second until its release, which saves each second, and on SIGTERM before it
exits with 42."""


class Job:
    """A run of `SAVES` in a job of its own."""

    def __init__(self, site: Site, run: Run, id: str) -> None:
        self.site, self.run, self.id = site, run, id

    @property
    def state(self) -> dict[str, Any]:
        return self.run.state()

    def wait_for(self, *statuses: str, hang_s: float = HANG_S) -> dict[str, Any]:
        until(lambda: self.state["status"] in statuses, f"{statuses}: {self.state}", hang_s)
        return self.state

    def train(self, attempt: int = 1) -> None:
        """Wait until this attempt has a checkpoint of its own."""
        started = f'"type":"task_started","task":"worker:0","attempt":{attempt}'
        later = f'{started}.*"type":"checkpoint_gathered"'
        events = self.run.folder / "events.jsonl"
        until(lambda: re.search(later, events.read_text(), re.DOTALL), f"attempt {attempt}")

    def steps(self, attempt: int, word: str) -> set[int]:
        """Return the steps at which the tasks of an attempt say that they ``begin`` or ``save``."""
        found = [re.findall(rf"{word}\w* (?:at )?(\d+)", self.run.log(f"worker:{n}", attempt))
                 for n in (0, 1)]  # fmt: skip
        return {int(step) for steps in found for step in steps}


def spec(site: Site, **sections: Any) -> Path:
    """Write a spec of `SAVES`, which goes on until the site's `release`."""
    env = {"RELEASE": str(site.desk / "release")}
    return site.spec(SAVES, job={"script": "train.py", "env": env}, **sections)


def submitted(site: Site, partition: str = "main", **sections: Any) -> Job:
    """Submit a run, and wait for its first checkpoint."""
    slurm = {"partition": partition, **sections.pop("slurm", {})}
    runtime = {"backend": "slurm", "slurm": slurm}
    run = site.up(spec(site, runtime=runtime, **sections), "-d")
    assert run.end() == 0, run.said
    job = Job(site, run, run.state()["job"]["id"])
    job.train()
    return job


def test_a_run_goes_on_each_time_its_job_runs_again(cluster: SlurmCluster, site: Site) -> None:
    job = submitted(site)
    preemptor = cluster.fill(3, "-p", "high")
    queued = job.wait_for("queued")
    assert "preempted by a job with a higher priority" in queued["waits_for"]
    cluster("scancel", preemptor, user="ben")
    job.train(2)
    cluster("scontrol", "requeue", job.id)
    job.train(3)
    site.release()

    ended = job.wait_for("succeeded", "failed", "interrupted")

    assert (ended["status"], ended["attempt"], ended["restarts"]) == ("succeeded", 3, [])
    continued = job.run.of_type("run_continued")
    assert [(event["restarts"], event["attempt"]) for event in continued] == [(1, 2), (2, 3)]
    assert job.steps(1, "begin") == {0}
    for attempt in (1, 2):
        chief = job.run.log("worker:0", attempt).split("saved ")[1]
        assert job.steps(attempt + 1, "begin") == {int(chief)}, "nothing is trained twice"
    assert len({c["path"] for c in ended["checkpoints"]}) == len(ended["checkpoints"])
    assert [event["seq"] for event in job.run.events()] == [*range(1, len(job.run.events()) + 1)]
    assert {task["state"] for task in ended["tasks"]} == {"succeeded"}
    assert ended["warnings"] == []
    goodput, ran_s = ended["goodput"], ended["ended_at"] - ended["started_at"]
    back = next(e["time"] for e in job.run.of_type("run_queued") if e.get("again"))
    assert goodput["restarts"] == 2
    assert goodput["seconds"]["queue"] > continued[0]["time"] - back - 1
    assert sum(goodput["seconds"].values()) == pytest.approx(ran_s, abs=1)


@pytest.mark.timeout(400)
def test_a_requeued_run_waits_until_slurm_s_credentials_have_expired() -> None:
    """Slurm's own default is two minutes."""
    with own_cluster(cpus=(2, 2), cred_expire=30) as cluster:
        site = Site(cluster)
        job = submitted(site)
        cluster("scontrol", "requeue", job.id)
        job.wait_for("queued")
        until(lambda: cluster.job(job.id)["Reason"] == "BeginTime", "the wait for its begin")
        site.release()

        ended = job.wait_for("succeeded", "failed", "interrupted", hang_s=300)

        assert (ended["status"], ended["attempt"]) == ("succeeded", 2)
        chief = job.run.log("worker:0", 1).split("saved ")[1]
        assert job.steps(2, "begin") == {int(chief)}
        site.close()


@pytest.mark.parametrize("end", ["preempted", "cancelled", "signalled"])
def test_a_run_that_cannot_come_back_says_how_to_continue(
    cluster: SlurmCluster, site: Site, end: str
) -> None:
    job = submitted(site, "cancel")
    match end:
        case "preempted":
            cluster.fill(3, "-p", "high")
        case "cancelled":
            cluster("scancel", job.id)
        case "signalled":
            cluster("scancel", "--full", "--signal=TERM", job.id)

    ended = job.wait_for("interrupted", "failed")

    assert (ended["status"], ended["exit_code"]) == ("interrupted", 143)
    reason, hint = ended["reason"] or "", ended["hint"] or ""
    expected = {"preempted": "preempted by a job", "cancelled": "it was cancelled (scancel)"}
    assert expected.get(end, "") in reason
    assert (f"tfcluster up --resume {ended['run']}" in hint) == (end in expected)
    saved = ended["checkpoints"][-1]["step"]
    assert saved in job.steps(1, "saved")
    if end == "preempted":
        cluster.restore()
        again = site.start("restart", job.run.folder.name, "-d")
        assert again.end() == 0, again.said
        (new,) = (line for line in again.said.splitlines() if RUN_ID.fullmatch(line))
        again.name = new.rpartition("-")[0]
        until(lambda: again.has_line(f"begins at {saved}", "worker:0"), "a resumed run")
        cluster("scancel", "--me")
        Job(site, again, "").wait_for("interrupted")


def test_a_job_whose_time_is_nearly_over_goes_back_into_the_queue(
    cluster: SlurmCluster, site: Site
) -> None:
    """Slurm checks twice a minute, and sends its signal up to 60 s early."""
    slurm = {"time": "1h", "extra": ["--signal=B:USR1@60"]}
    job = submitted(site, slurm=slurm, supervision={"run_deadline_s": "2h"})
    (warning,) = job.run.of_type("warned")
    assert "the job ends after 1 h" in warning["message"]
    cluster.expire(job.id, 85)
    queued = job.wait_for("queued")
    assert "its time limit is near" in queued["waits_for"]
    cluster("scontrol", "update", f"JobId={job.id}", "TimeLimit=60", user="root")
    job.train(2)
    cluster("scancel", job.id)
    job.wait_for("interrupted")


def test_a_frozen_node_is_replaced_where_the_gang_cannot_shrink(
    cluster: SlurmCluster, site: Site
) -> None:
    job = submitted(site, supervision={"lease_s": 3, "backoff_s": 0.1, "min_workers": 2})
    cluster.freeze("n2")
    queued = job.wait_for("queued", "failed", "interrupted")
    assert "another node in the place of node-1" in (queued["waits_for"] or "")
    job.train(2)
    (restart,) = job.state["restarts"]
    assert (restart["attempt"], restart["of"]) == (2, 4)
    assert [set(event["hosts"].values()) for event in job.run.of_type("nodes_allocated")] == [
        {"n1", "n2"},
        {"n1", "n3"},
    ]
    cluster.thaw("n2")
    cluster("scancel", job.id)
    job.wait_for("interrupted")


def test_a_run_that_can_shrink_is_queued_again_if_it_loses_the_node_of_its_coordinator(
    cluster: SlurmCluster, site: Site
) -> None:
    """Slurm keeps such a job, which then has no script: the agent that is left puts it back."""
    job = submitted(site, supervision={"lease_s": 3, "min_workers": 1})
    cluster.power_off("n1")
    job.train(2)
    hosts = [set(event["hosts"].values()) for event in job.run.of_type("nodes_allocated")]
    assert hosts == [{"n1", "n2"}, {"n2", "n3"}]
    assert job.steps(2, "begin") <= {c["step"] for c in job.state["checkpoints"]}
    cluster("scancel", job.id)
    job.wait_for("interrupted")


def test_a_coordinator_that_was_frozen_leaves_the_run_to_its_successor(
    cluster: SlurmCluster, site: Site
) -> None:
    """Both are of the same job, so what the old one orders would hit the agents of the new one."""
    job = submitted(site, supervision={"lease_s": 5})
    cluster.freeze("n1")
    job.train(2)
    cluster.thaw("n1")
    until(lambda: not coordinators(cluster, "n1"), "the end of the frozen coordinator")
    seen = job.state["tasks"][0]["step"] or 0
    until(lambda: (job.state["tasks"][0]["step"] or 0) > seen, "more steps of its successor")
    site.release()

    ended = job.wait_for("succeeded", "failed", "interrupted")

    assert ended["status"] == "succeeded", ended["reason"]
    assert [event["seq"] for event in job.run.events()] == [*range(1, len(job.run.events()) + 1)]
    hosts = [set(event["hosts"].values()) for event in job.run.of_type("nodes_allocated")]
    assert hosts == [{"n1", "n2"}, {"n2", "n3"}]


def coordinators(cluster: SlurmCluster, node: str) -> list[int]:
    found = cluster.processes(node).items()
    return [pid for pid, words in found if "tfcluster.in_job" in words]


def test_a_suspended_job_goes_on_where_it_was(cluster: SlurmCluster, site: Site) -> None:
    job = submitted(site, supervision={"lease_s": 5})
    cluster("scontrol", "suspend", job.id, user="root")
    since = time.monotonic()

    def status() -> str:
        shown = site.start("ps", "--json")
        assert shown.end() == 0, shown.said
        return str(json.loads(shown.said)[0]["status"])

    until(lambda: status() == "suspended", "the state in `ps`")
    until(lambda: time.monotonic() > since + 12, "the end of a lease, had it not been suspended")
    step = job.state["tasks"][0]["step"]
    cluster("scontrol", "resume", job.id, user="root")
    until(lambda: job.state["tasks"][0]["step"] > step, "more steps")
    site.release()

    ended = job.wait_for("succeeded", "failed", "interrupted")

    assert (ended["status"], ended["attempt"], ended["restarts"]) == ("succeeded", 1, [])
    (suspended,) = job.run.of_type("suspended")
    assert suspended["seconds"] >= 10
    assert ended["goodput"]["seconds"]["suspended"] == pytest.approx(suspended["seconds"], abs=1)


def test_an_interactive_job_that_ends_takes_its_run_along(
    cluster: SlurmCluster, site: Site
) -> None:
    run = site.up(spec(site), within=["salloc", "-N2"])
    job = Job(site, run, "")
    job.train()
    cluster("scancel", job.state["allocation"]["id"])
    run.end()
    ended = job.state
    assert (ended["status"], ended["exit_code"]) == ("interrupted", 143)
    assert "it was cancelled (scancel)" in ended["reason"]
    assert "tfcluster up --resume" in run.said


def test_a_script_of_the_users_own_goes_on_in_the_same_run(
    cluster: SlurmCluster, site: Site
) -> None:
    path = spec(site)
    script = site.write("job.sh", '#!/bin/sh\n"$@"\n')
    run = site.up(path, within=["sbatch", "-N2", "--open-mode=append", str(script)])
    assert run.end() == 0, run.said
    job = Job(site, run, "")
    job.train()
    cluster("scontrol", "requeue", job.state["allocation"]["id"])
    job.wait_for("queued")
    site.release()
    ended = job.wait_for("succeeded", "failed", "interrupted")
    assert (ended["status"], ended["attempt"]) == ("succeeded", 2)
    assert job.steps(2, "begin") <= job.steps(1, "saved")
    assert len(list(run.folder.parent.iterdir())) == 1


FIT = """
import os, time
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
x = np.random.default_rng(0).normal(size=(400, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).batch(8)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
data = data.with_options(options)

class Each(tf.keras.callbacks.Callback):
    def __init__(self, name):
        super().__init__()
        self.name, self.steps = name, 0
    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.name == "epoch" and self.steps > 58 and os.environ["TFCLUSTER_ATTEMPT"] == "1":
            time.sleep(0.2)  # the news of Slurm's signal takes a second
    def on_epoch_end(self, epoch, logs=None):
        print(self.name, epoch, "loss", logs["loss"], flush=True)

def fit(name, *callbacks):
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
    model.fit(data, epochs=3, verbose=0, callbacks=[Each(name), *callbacks])

backup = os.path.join(os.environ["TFCLUSTER_CHECKPOINT_DIR"], "backup")
fit("epoch", tf.keras.callbacks.BackupAndRestore(backup))
fit("undisturbed")
"""
FIT_SPEC = {"name": "fit", "cluster": {"worker": 2}, "job": {"script": "fit.py"}}


def losses(run: Run, name: str) -> list[float]:
    # Slurm may take so long to preempt it that the frozen attempt is started again before.
    attempts = range(1, 1 + len([*run.folder.glob("logs/attempt-*")]))
    logs = "".join(run.log("worker:0", attempt) for attempt in attempts)
    return [float(loss) for loss in re.findall(rf"^{name} \d+ loss (\S+)", logs, re.MULTILINE)]


@pytest.mark.tensorflow
@pytest.mark.timeout(400)
def test_a_preempted_training_ends_with_the_losses_of_an_undisturbed_one(
    cluster: SlurmCluster, site: Site
) -> None:
    site.write("fit.py", FIT)
    path = site.write("spec.json", json.dumps(FIT_SPEC))
    options = ("--backend=slurm", f"--python={PYTHONS['tf215']}", "--name=preempted")
    # In the second epoch, until Slurm's SIGCONT.
    run = site.up(path, *options, "--chaos=stop worker:0 at step 60")
    run.name = "preempted"
    job = Job(site, run, "")
    run.wait_for_event("chaos_injected", hang_s=TRAINING_S)
    preemptor = cluster.fill(3, "-p", "high")
    job.wait_for("queued")
    cluster("scancel", preemptor, user="ben")
    assert run.end(TRAINING_S) == 0, run.said
    assert "epoch 0" not in run.log("worker:0", 2), "it has resumed"
    undisturbed = losses(run, "undisturbed")
    assert len(undisturbed) == 3
    assert losses(run, "epoch") == pytest.approx(undisturbed, rel=1e-5)
    assert job.state["warnings"] == []
