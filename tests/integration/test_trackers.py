"""The examples of docs/guides/trackers.md log a real two-worker training, offline."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .commandline import CommandLine

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "trackers.md"
SCRIPT = """
import os

import mlflow
import numpy as np
import tensorflow as tf
import wandb

{examples}

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
x = np.ones((64, 4), np.float32)
callbacks = [*wandb_callbacks("digits"), *mlflow_callbacks("digits")]
model.fit(x, x.sum(axis=1), batch_size=16, epochs=3, verbose=0, callbacks=callbacks)
"""


def test_both_examples_log_the_chiefs_loss_once(shell: CommandLine) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(examples) == 2
    shell.script("train.py", SCRIPT.format(examples="\n\n".join(examples)))
    shell.env |= {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": f"file://{shell.root}/mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
    done = shell.run("run", "-n", "2", "train.py", timeout=240)
    assert done.code == 0, done.err

    (losses,) = Path(shell.root, "mlruns").glob("*/*/metrics/loss")
    steps = [line.split() for line in losses.read_text().splitlines()]
    assert [step for _, _, step in steps] == ["0", "1", "2"]
    assert float(steps[2][1]) < float(steps[0][1])
    (run,) = shell.home.glob("runs/*")
    (written,) = (shell.cwd / "wandb").glob("offline-run-*")
    assert written.name.endswith(run.name)
    assert next(written.glob("*.wandb")).stat().st_size > 0
