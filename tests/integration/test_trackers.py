"""The examples of docs/guides/trackers.md log a real two-worker training, offline.

The chief is killed once, and goes on with its entries.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .commandline import CommandLine

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(400)]

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "trackers.md"
SCRIPT = """
import os
import signal

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
if callbacks and os.environ["TFCLUSTER_ATTEMPT"] == "1":
    kill = lambda epoch, logs: os.kill(os.getpid(), signal.SIGKILL)
    callbacks.append(tf.keras.callbacks.LambdaCallback(on_epoch_end=kill))
model.fit(x, x.sum(axis=1), batch_size=16, epochs=3, verbose=0, callbacks=callbacks)
"""


def test_a_restarted_chief_goes_on_with_the_entries_of_both_examples(shell: CommandLine) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(examples) == 2
    shell.script("train.py", SCRIPT.format(examples="\n\n".join(examples)))
    spec = shell.spec("s.json", {"script": "train.py"}, supervision={"backoff_s": 0})
    shell.env |= {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": f"file://{shell.root}/mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
    done = shell.run("up", str(spec), timeout=380)
    assert done.code == 0, done.err

    (run,) = shell.home.glob("runs/*")
    (losses,) = Path(shell.root, "mlruns").glob("*/*/metrics/loss")
    steps = [line.split() for line in losses.read_text().splitlines()]
    assert [step for _, _, step in steps] == ["0", "0", "1", "2"]
    assert float(steps[3][1]) < float(steps[1][1])
    tags = losses.parents[1] / "tags"
    assert (tags / "mlflow.runName").read_text() == f"{run.name}-worker-0"
    assert (tags / "tfcluster.group").read_text() == run.name

    written = sorted((shell.cwd / "wandb").glob("offline-run-*"))
    assert len(written) == 2  # one for each attempt
    assert all(folder.name.endswith(f"-{run.name}-worker-0") for folder in written)
    assert run.name.encode() in next(written[1].glob("*.wandb")).read_bytes()
