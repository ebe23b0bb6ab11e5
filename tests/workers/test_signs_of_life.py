"""A task reports evaluations, saves and that it is alive, under real TensorFlow and each Keras."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from .conftest import PYTHONS, Boot

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]


KERAS = """
import io, os, signal, sys
import numpy as np
import tensorflow as tf
from tfcluster_workers import reporting

keras = tf.keras
model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), "mse", steps_per_execution=5)
x, y = np.ones((200, 3), "float32"), np.ones((200, 1), "float32")

model.fit(x, y, batch_size=10, epochs=2, verbose=0, validation_data=(x, y))
model.save_weights("weights" + os.environ["SUFFIX"])
print("trained")

ours = os.environ["TFCLUSTER_CHECKPOINT_DIR"]
state = tf.train.Checkpoint(step=tf.Variable(200), optimizer=model.optimizer)
manager = tf.train.CheckpointManager(state, ours, max_to_keep=3)
manager.save()
state.step.assign(400)
manager.save()
tf.train.Checkpoint(model=model).save(os.path.join(ours, "model"))
tf.train.Checkpoint(epoch=tf.Variable(2)).save(os.path.join(ours, "epoch"))

def evaluated_by(task):
    os.environ["TFCLUSTER_TASK"] = task
    reporting._alive_at = float("-inf")
    model.evaluate(x, y, batch_size=50, verbose=0)

evaluated_by("worker:0")
reporting._alive_at = float("-inf")
model.predict(x, verbose=0)
evaluated_by("evaluator:0")
sys.stderr = io.StringIO()

def in_cpp(seconds):
    tf.py_function(lambda: os.kill(os.getpid(), signal.SIGUSR1), [], [])

in_cpp(1)
"""
EACH = [("tf215", ".tf", ""), ("newest", ".tf", "1"), ("newest", ".weights.h5", "")]


@pytest.mark.parametrize(("tensorflow", "suffix", "legacy"), EACH, ids=["2.15", "tf_keras", "3"])
def test_a_keras_job_reports_alive_outside_training_and_steps_per_execution(
    boot: Boot, tmp_path: Path, tensorflow: str, suffix: str, legacy: str
) -> None:
    (tmp_path / "job.py").write_text(KERAS)
    faults = [
        {"fault": "step", "do": "report", "place": "step", "number": 7},
        {"fault": "save", "do": "report", "place": "save", "number": 1},
    ]
    saves = tmp_path / "saves"
    env = {"SUFFIX": suffix, "TFCLUSTER_SETTINGS": json.dumps({"chaos": faults})}
    env["TFCLUSTER_CHECKPOINT_DIR"] = str(saves)
    if legacy:
        env["TF_USE_LEGACY_KERAS"] = legacy
    python = PYTHONS[tensorflow]
    ended = boot("script", str(tmp_path / "job.py"), python=python, env=env)
    assert ended.code == 0, ended.err[-3000:]
    progress = ended.of("progress")
    assert {event["steps_per_execution"] for event in progress} == {5}
    assert progress[-1]["step"] == 40
    assert len(ended.of("alive")) >= 3, "one for each of validation, evaluate and predict"
    assert ended.of("evaluated") == [{"type": "evaluated", "step": 40}], (
        "only the evaluator reports it"
    )
    assert [(e["fault"], e["step"]) for e in ended.of("chaos_injected")] == [
        ("step", 10),
        ("save", 40),
    ]
    # The numbers in the names count saves; the step of `epoch-1` is the last one of `fit`.
    steps = {"ckpt-1": 200, "ckpt-2": 400, "model-1": 40, "epoch-1": 40}
    saved = {event["path"]: event["step"] for event in ended.of("saved")}
    assert saved == {str(saves / name): step for name, step in steps.items()}
    assert ended.of("saved_elsewhere") == [{"type": "saved_elsewhere", "step": 40}]
    assert "in in_cpp" in ended.err, "the stacks go to the log, whatever sys.stderr is"


SAVES = """
import os, time
import tensorflow as tf
from tensorflow.python.ops import gen_io_ops

merge = gen_io_ops.merge_v2_checkpoints
def merge_slowly(*args, **options):
    if number == 2:
        time.sleep(60)
    return merge(*args, **options)
gen_io_ops.merge_v2_checkpoints = merge_slowly

checkpoint = tf.train.Checkpoint(value=tf.Variable(tf.random.normal([2000, 2000])))
manager = tf.train.CheckpointManager(checkpoint, "ckpt", max_to_keep=5)
for number in (1, 2, 3):
    manager.save()
    print("saved", number, flush=True)
"""


def test_a_fault_at_a_save_leaves_half_a_checkpoint(boot: Boot, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SAVES)
    fault = {"fault": "kill worker:0 at save 2", "do": "kill", "place": "save", "number": 2}
    env = {"TFCLUSTER_SETTINGS": json.dumps({"chaos": [fault]})}
    ended = boot("script", str(tmp_path / "job.py"), python=PYTHONS["newest"], env=env)
    assert (ended.code, ended.out) == (-9, "saved 1\n"), ended.err[-2000:]
    assert ended.of("chaos_injected") == [
        {"type": "chaos_injected", "fault": "kill worker:0 at save 2"}
    ]
    left = {path.name for path in (tmp_path / "ckpt").iterdir()}
    assert "ckpt-1.index" in left
    assert any(name.startswith("ckpt-2") for name in left), "the second save has begun"
    assert "ckpt-2.index" not in left, "the second save was not completed"


MODELS = """
import time, zipfile
import tensorflow as tf

close = zipfile.ZipFile.close
def close_slowly(archive):
    if archive.mode == "w" and number == 2:
        time.sleep(60)
    close(archive)
zipfile.ZipFile.close = close_slowly

model = tf.keras.Sequential([tf.keras.layers.Input((200,)), tf.keras.layers.Dense(400)])
for number in (1, 2, 3):
    model.save("model.keras")
    print("saved", number, flush=True)
"""


def test_a_fault_at_a_save_of_a_model_leaves_the_one_before(boot: Boot, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(MODELS)
    fault = {"fault": "kill worker:0 at save 2", "do": "kill", "place": "save", "number": 2}
    env = {"TFCLUSTER_SETTINGS": json.dumps({"chaos": [fault]}), "TFCLUSTER_TASK": "worker:0"}
    ended = boot("script", str(tmp_path / "job.py"), python=PYTHONS["newest"], env=env)
    assert (ended.code, ended.out) == (-9, "saved 1\n"), ended.err[-2000:]
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        assert archive.testzip() is None
    (half,) = tmp_path.glob("workertemp_worker_0_*/model.keras")
    assert half.stat().st_size < (tmp_path / "model.keras").stat().st_size
