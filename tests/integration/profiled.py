"""A job for `tfcluster profile`, and what its profile must be like on every backend."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .notebooks import as_notebook

FIT = """
import time
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
x = tf.random.stateless_normal((256, 16), seed=(1, 2))
data = tf.data.Dataset.from_tensor_slices((x, tf.reduce_sum(x, axis=1, keepdims=True)))
with strategy.scope():
    layers = [tf.keras.layers.Dense(64, "relu"), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential([tf.keras.layers.Input((16,)), *layers])
    model.compile(optimizer="sgd", loss="mse")
pace = tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(0.1))
model.fit(data.repeat().batch(32), steps_per_epoch=1_000_000, verbose=0, callbacks=[pace])
"""
"""A training of two workers that goes on until it is stopped.

A speed that is measured over the first steps must not be far below the later one: by it the step is
chosen at which the traces begin, and all tasks must have the order by then.
"""
FIT_NOTEBOOK = as_notebook(*re.split(r"(?m)^(?=x = |with )", FIT))
"""The same as a notebook of three cells."""

LOAD = """
import sys
try:
    from tensorflow.python.profiler.internal import _pywrap_profiler_plugin as plugin
except ImportError:
    from tensorflow.python.profiler.internal import _pywrap_profiler as plugin
for tool in ("overview_page", "framework_op_stats", "tensorflow_stats"):
    data, is_made = plugin.xspace_to_tools_data(sys.argv[1:], tool, {})
    if is_made and tool != "overview_page":
        assert b"CollectiveReduceV2" in data, data
        print("has ops")
    elif is_made and data:
        print("has an overview")
"""
"""Reads traces with what TensorBoard's profile plugin calls for its pages, in TensorFlow itself.

One of the last two tools is unknown to each release.
"""


def check_profile(said: str, run: Path, python: Path, *, steps: int) -> dict[str, Any]:
    """Check what `tfcluster profile --json` has said of two workers; return it.

    `run`: the run folder, as this process sees it; `python` has TensorFlow.
    """
    found: dict[str, Any] = json.loads(next(line for line in said.splitlines() if line[:1] == "{"))
    first, second = found["tasks"]
    assert (first["task"], second["task"]) == ("worker:0", "worker:1")
    assert "problem" not in first | second, found
    assert first["last"] - first["first"] + 1 == steps
    assert (first["first"], first["last"]) == (second["first"], second["last"])
    for task in (first, second):
        assert sum(task["parts"].values()) == pytest.approx(task["seconds"])
        ops = {op["type"]: op for op in task["ops"]}
        assert ops["CollectiveReduceV2"]["part"] == "collective"
        assert ops["CollectiveReduceV2"]["count"] >= steps - 1  # one may outlast the trace
        assert task["parts"]["collective"] > 0
        assert Path(task["trace"]).parent == Path(found["folder"])
    folder = run / "tensorboard" / "plugins" / "profile" / found["profile"]
    traces = sorted(folder.iterdir())
    assert [trace.name for trace in traces] == ["worker-0.xplane.pb", "worker-1.xplane.pb"]
    loaded = subprocess.run([python, "-c", LOAD, *traces], capture_output=True, text=True)
    assert loaded.stdout.split("\n")[:2] == ["has an overview", "has ops"], loaded.stderr
    return found
