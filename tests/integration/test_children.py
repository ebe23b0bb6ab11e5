"""A script that starts the training as a child trains as if it trained itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .commandline import CommandLine
from .jobs.lab import a_lab

FIT = """
import numpy as np
import tensorflow as tf

print(tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec().num_tasks("worker"))
strategy = tf.distribute.MultiWorkerMirroredStrategy()
inputs = np.random.RandomState(0).rand(256, 8).astype("f4")
data = tf.data.Dataset.from_tensor_slices((inputs, inputs.sum(1))).batch(32)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(data, epochs=2, verbose=2)
"""
CALLS = """
import os, subprocess, sys
version = [sys.executable, "-c", "import tensorflow; print(tensorflow.__version__)"]
assert subprocess.check_output(version, stderr=subprocess.DEVNULL).startswith(b"2.21"), "in a child"
subprocess.run(["sh", "-c", f"exec {sys.executable} -m fit"], env={**os.environ}, check=True)
"""


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_workers_train_in_children() -> None:
    """The children that only look for a version report nothing."""
    with a_lab() as lab:
        lab.line.script("fit.py", FIT)
        lab.line.script("main.py", CALLS)
        trained = lab.train("run", "-n", "2", "main.py")
    assert trained.code == 0, trained.complaint()
    assert "patched Keras" in trained.out
    for task in trained.state["tasks"]:
        assert (task["step"], task["total_steps"]) == (16, 16)
    assert len(trained.of("task_ready")) == 2
    phases = [event["name"] for event in trained.of("task_phase", "worker:1")]
    assert phases == ["importing TensorFlow", "", "waiting for peers"]
    assert re.search(r"[\d,.]+ examples/s on average", trained.err), trained.complaint()


STEPS = """
import signal, sys, time
from tfcluster_workers import reporting

signal.signal(signal.SIGTERM, signal.SIG_IGN)
for step in range(1, 6):
    reporting.progress(step, total=5)
"""


@pytest.mark.parametrize(
    "main",
    [
        "import subprocess, sys\nsys.exit(subprocess.call([sys.executable, 'steps.py']))",
        "import subprocess, sys\nsubprocess.run([sys.executable, 'steps.py'], check=True)",
    ],
    ids=["exit code", "CalledProcessError"],
)
def test_a_run_whose_child_was_killed_is_restarted(shell: CommandLine, main: str) -> None:
    """The script itself ends with an exit code or an exception, which are no reason to restart."""
    shell.script("main.py", main)
    shell.script("steps.py", STEPS)
    faults = ("--chaos", "kill worker:0 at step 3", "--set", "supervision.max_restarts=1")
    done = shell.run("run", "-n", "1", *faults, "main.py")
    assert done.code == 0, done.err
    state = shell.state()
    assert [task["step"] for task in state["tasks"]] == [5]
    assert [fault["step"] for fault in state["chaos"]] == [3]
    assert len(state["restarts"]) == 1


FAMILY = """
import os, subprocess, sys
for argv in (
    ["git", "--version"],
    ["sh", "-c", "echo shell; exit 3"],
    [sys.executable, "-c", "print('python')"],
    [sys.executable, "-c", "import keras; print(keras.__version__)"],
    [sys.executable, "-c", "import keras; keras.fit()"],
    [sys.executable, "-I", "-c", "import sys; print(sys.flags.isolated)"],
):
    ended = subprocess.run(argv, capture_output=True, text=True)
    print(ended.returncode, repr(ended.stdout), repr(ended.stderr), flush=True)
"""


def test_children_that_do_not_train_are_not_disturbed(shell: CommandLine) -> None:
    shell.script("family.py", FAMILY)
    shell.script("keras.py", "__version__ = '3.15'\n")
    printed = {}
    for hooks in ("auto", "off"):
        done = shell.run("run", "-n", "1", "--set", f"job.hooks={hooks}", "family.py")
        assert done.code == 0, done.err
        printed[hooks] = done.out
        kinds = {event["type"] for event in shell.events()}
        assert not kinds & {"task_phase", "task_error", "progress", "warned", "hint"}, kinds
    assert printed["auto"] == printed["off"]
    assert Path(shell.last_run()).is_dir()
