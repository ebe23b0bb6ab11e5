"""A job that saves on SIGTERM reports that, saves, reports the save and exits with 42."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import PYTHONS, Gang

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]


JOB = """
import os, sys, time
import tensorflow as tf
from tfcluster_workers import reporting

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    value = tf.Variable(0.0)
    checkpoint = tf.train.Checkpoint(value=value)
handler = tf.distribute.experimental.PreemptionCheckpointHandler(
    strategy.cluster_resolver, checkpoint, os.environ["TFCLUSTER_CHECKPOINT_DIR"],
    tf.distribute.experimental.TerminationConfig(
        termination_watcher_fn=None, exit_fn=lambda: sys.exit(42), grace_period=0),
)

@tf.function
def train():
    # In step with each other, as the handler expects: it lets the others do one step more.
    mean = strategy.reduce("MEAN", strategy.run(lambda: tf.constant(1.0)), axis=None)
    strategy.run(lambda: value.assign_add(mean))

while handler.total_run_calls < 2000:
    handler.run(train)
    reporting.progress(int(handler.total_run_calls))
    time.sleep(0.01)
"""


def test_preempted_workers_save_together_and_report_it(gang: Gang, tmp_path: Path) -> None:
    """The newest TensorFlow: tests/integration/jobs/test_custom_loop.py."""
    (tmp_path / "job.py").write_text(JOB)
    fault = {"fault": "term worker:1 at step 20", "do": "term", "place": "step", "number": 20}

    def env(task: str) -> dict[str, str]:
        faults = [fault] if task == "worker:1" else []
        return {
            "TFCLUSTER_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
            "TFCLUSTER_SETTINGS": json.dumps({"chaos": faults}),
        }

    ended = gang(
        PYTHONS["tf215"],
        ["worker:0", "worker:1"],
        ["script", str(tmp_path / "job.py")],
        cwd=tmp_path,
        env=env,
    )
    assert [task.code for task in ended.values()] == [42, 42], ended["worker:1"].text[-3000:]
    for task in ended.values():
        assert "saves_on_sigterm" in [event["type"] for event in task.events]
    chief, other = (task.events for task in ended.values())
    (injected,) = [event for event in other if event["type"] == "chaos_injected"]
    assert injected["step"] == 20
    (saved,) = [event for event in chief if event["type"] == "saved"]
    assert 20 <= saved["step"] <= 24
    assert Path(saved["path"] + ".index").is_file()
