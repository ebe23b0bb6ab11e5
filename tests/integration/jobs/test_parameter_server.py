"""A parameter-server job survives the loss of a worker, of its ps and of its chief."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import pytest
from tests.documentation import unprinted

from tfcluster.supervision import failure

from .lab import PYTHONS, SPECS, Lab, Trained, a_lab

# Four TensorFlow processes at a time on two busy cores.
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

SPEC = str(SPECS / "parameter-server.json")
TASKS = ("chief:0", "worker:0", "worker:1", "ps:0")

FIT = """
import os, signal
from tfcluster_workers import callbacks, server
server.serve_unless_chief()
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
x = tf.random.stateless_normal((512, 8), seed=(1, 2))
data = tf.data.Dataset.from_tensor_slices((x, tf.reduce_sum(x, axis=1, keepdims=True)))
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((8,)), tf.keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")

class Epochs(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("epoch", epoch + 1, "SIGTERM", signal.getsignal(signal.SIGTERM).name, flush=True)
        if epoch == 1 and os.environ["TFCLUSTER_ATTEMPT"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)

backup = tf.keras.callbacks.BackupAndRestore(callbacks.backup_dir())
model.fit(data.repeat().batch(32), epochs=3, steps_per_epoch=20, verbose=2,
          callbacks=[backup, Epochs()])
"""
"""A user script that calls the server entry point and `fit`; its chief dies after two epochs."""

EITHER_KERAS = """
import os, resource
import keras, tf_keras
import tensorflow as tf
from tfcluster_workers import server
from tfcluster_workers.keras3 import patching

strategy = tf.distribute.ParameterServerStrategy(server.start_in_process(workers=3))
x = tf.random.stateless_normal((64, 8), seed=(1, 2))
y = tf.cast(tf.reduce_sum(x, axis=1, keepdims=True) > 0, tf.float32)
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)

def train(name, either):
    with strategy.scope():
        model = either.Sequential([either.layers.Input((8,)), either.layers.Dense(1, "sigmoid")])
        true = either.metrics.TruePositives(), either.metrics.TrueNegatives()
        false = either.metrics.FalsePositives(), either.metrics.FalseNegatives()
        model.compile(optimizer="sgd", loss="binary_crossentropy", metrics=[*true, *false])
    try:
        history = model.fit(data.repeat(), epochs=2, steps_per_epoch=150, verbose=0).history
        counted = sum(values[-1] for key, values in history.items() if key != "loss")
        print(name, int(model.optimizer.iterations), "steps", int(counted), "examples", flush=True)
    except ValueError as error:
        print("ValueError:", error, flush=True)
    return model

train("keras", keras)
train("tf_keras", tf_keras)
patching.attach(keras)
model = train("patched", keras)
print("evaluated", *model.evaluate(data, verbose=0)[1:], *model.predict(data, verbose=0).shape)

# Each RPC reads it: it is never set too late. TensorFlow may die of a wrong one.
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.environ["GRPC_FAIL_FAST"] = "neither"
try:
    tf.config.experimental_connect_to_cluster(server.start_in_process())
finally:
    os._exit(0)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab() as made:
        made.line.script("fit.py", FIT)
        cluster = {"chief": 1, "worker": 1, "ps": 1}
        spec = {"version": 1, "name": "fit", "cluster": cluster, "job": {"script": "fit.py"}}
        made.line.script("fit.json", json.dumps(spec))
        yield made


@pytest.fixture(scope="module")
def a_worker_killed(lab: Lab) -> Trained:
    """The run of the shipped spec on the newest TensorFlow, with a worker killed at step 150."""
    options = (f"--python={PYTHONS['newest']}", "--set=supervision.backoff_s=0")
    return lab.train("up", SPEC, *options, "--chaos=kill worker:1 at step 150")


@pytest.fixture(scope="module")
def a_ps_killed(lab: Lab) -> Trained:
    """A run on TensorFlow 2.15 whose ps is killed, which loses the variables.

    The chief goes on until the ps is dead: soon after a checkpoint it is far from the next one.
    """
    options = (f"--python={PYTHONS['tf215']}", "--set=supervision.backoff_s=0")
    few = ("--max-steps=300", "--save-steps=100", "--examples=3000")
    return lab.train("up", SPEC, *options, "--chaos=kill ps:0 at step 105", "--", *few)


def pids(trained: Trained, task: str) -> list[int]:
    return [event["pid"] for event in trained.of("task_started", task)]


# -- a worker dies -------------------------------------------------------------------------------


def test_the_other_tasks_continue_when_a_worker_dies(a_worker_killed: Trained) -> None:
    trained = a_worker_killed
    assert trained.code == 0, trained.complaint()
    starts = {task: len(pids(trained, task)) for task in TASKS}
    assert starts == {"chief:0": 1, "worker:0": 1, "worker:1": 2, "ps:0": 1}
    assert {e["attempt"] for e in trained.of("progress")} == {1}, "the coordinator's own attempt"
    (restart,) = trained.of("restarting")
    assert (restart["task"], restart["attempt"]) == ("worker:1", 2)


def test_the_final_step_is_max_steps(a_worker_killed: Trained) -> None:
    steps = [event["step"] for event in a_worker_killed.of("progress", "chief:0")]
    assert steps == sorted(steps)
    assert steps[-1] == 400
    reports = a_worker_killed.reports("chief:0")
    assert {event["total_steps"] for event in reports} == {400}
    kept = [checkpoint["step"] for checkpoint in a_worker_killed.state["checkpoints"]]
    assert kept == [200, 300, 400]
    assert reports[-1]["examples_per_second"] > 0


def test_the_chief_evaluates_its_last_checkpoint(a_worker_killed: Trained) -> None:
    (accuracy,) = a_worker_killed.said("chief:0", r"^test accuracy (\S+)")
    assert float(accuracy) >= 0.95
    assert "tf_keras 2.21.0 is used" in " ".join(a_worker_killed.err.split())


def test_workers_and_ps_are_stopped_after_the_chief(a_worker_killed: Trained) -> None:
    exits = a_worker_killed.of("task_exited")
    (chief,) = a_worker_killed.of("task_exited", "chief:0")
    assert (chief["exit_code"], chief["ended_by"]) == (0, "itself")
    after = [event for event in exits if event["seq"] > chief["seq"]]
    assert sorted(event["task"] for event in after) == ["ps:0", "worker:0", "worker:1"]
    assert {event["ended_by"] for event in after} == {"tfcluster"}
    stops = a_worker_killed.of("task_stopping")
    assert {event["why"] for event in stops} == {"the chief has finished"}
    assert a_worker_killed.state["warnings"] == []


# -- a ps dies (the chief dies in "user scripts" below) ------------------------------------------


def test_the_page_shows_what_is_printed(a_worker_killed: Trained, a_ps_killed: Trained) -> None:
    killed = a_worker_killed
    assert unprinted("tutorials/parameter_server.md", "step 400", killed.out, killed.err) == []
    assert unprinted("tutorials/parameter_server.md", "at step 150", killed.err) == []
    said = (a_ps_killed.out, a_ps_killed.err)
    assert unprinted("tutorials/parameter_server.md", "ps:0: killed", *said) == []


def test_the_loss_of_a_ps_restarts_all_tasks(a_ps_killed: Trained) -> None:
    trained = a_ps_killed
    assert trained.code == 0, trained.complaint()
    assert [len(set(pids(trained, task))) for task in TASKS] == [2, 2, 2, 2]
    (diagnosis,) = trained.of("diagnosis")
    assert diagnosis["root_cause"]["task"] == "ps:0"


def test_a_restarted_chief_resumes_from_the_last_checkpoint(a_ps_killed: Trained) -> None:
    trained = a_ps_killed
    assert [event["from_step"] for event in trained.of("restarting")] == [100]
    assert trained.said("chief:0", r"^resuming at step (\d+)") == ["100"]
    assert trained.said("chief:0", r"^step (\d+) loss") == ["100", "200", "300"]
    assert float(trained.said("chief:0", r"^test accuracy (\S+)")[-1]) > 0.8


# -- user scripts --------------------------------------------------------------------------------


def test_fit_reports_its_steps_and_resumes_from_its_backup_when_the_chief_is_killed(
    lab: Lab,
) -> None:
    options = (f"--python={PYTHONS['tf215']}", "--set=supervision.backoff_s=0")
    trained = lab.train("up", "fit.json", *options)
    assert trained.code == 0, trained.complaint()
    assert trained.state["attempt"] == 2
    ended = [f"{epoch} SIGTERM SIG_DFL" for epoch in (1, 2, 3)]
    assert trained.said("chief:0", r"^epoch (.*)") == ended, "nobody can save: the ps stop as well"
    last = trained.of("progress", "chief:0")[-1]
    assert (last["step"], last["epoch"], set(last["metrics"])) == (60, 3, {"loss"})
    assert (last["epochs"], last["steps_per_epoch"], last["total_steps"]) == (3, 20, 60)


def test_fit_with_parameter_servers_counts_all_steps_with_keras_2_and_patched_keras_3(
    lab: Lab,
) -> None:
    """A failure of the first `fit` means that Keras 3 itself now supports it: then say so."""
    done = in_one_process(lab, "-c", EITHER_KERAS)
    assert len(done.stdout.splitlines()) >= 4, done.stderr[-3000:]
    refused, *trained, evaluated = done.stdout.splitlines()[-4:]
    known = failure.find(refused)
    assert known is not None
    assert known.anchor == "keras-3-parameter-server"
    counts = "300 steps 600 examples"
    assert trained == [f"tf_keras {counts}", f"patched {counts}"]
    word, *confusion, rows, columns = evaluated.split()
    assert (word, rows, columns) == ("evaluated", "64", "1")
    assert sum(map(float, confusion)) == 64
    # The module plans/preloading.py relies on this error.
    assert "Invalid GRPC_FAIL_FAST config: neither" in done.stderr


# -- without the launcher ------------------------------------------------------------------------


def test_without_the_launcher_the_job_runs_the_whole_cluster_in_one_process(lab: Lab) -> None:
    few = ("--max-steps=60", "--save-steps=30", "--examples=2000")
    job = ("-m", "tfcluster_workers.jobs.parameter_server", *few)
    done = in_one_process(lab, *job, TFCLUSTER_SETTINGS='{"keras_version": "3"}')
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split()[:2] for line in done.stdout.splitlines()]
    assert [line for line in lines if line[0] == "step"] == [["step", "30"], ["step", "60"]]
    assert lines[-1][:2] == ["test", "accuracy"]
    assert "ckpt-60.index" in os.listdir(lab.line.root / "checkpoints")


def in_one_process(
    lab: Lab, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PYTHONS["newest"]), *arguments],
        env=lab.line.env | environment,
        cwd=lab.line.root,
        capture_output=True,
        text=True,
        check=False,
    )
