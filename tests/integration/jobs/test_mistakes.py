"""The diagnosis names mistakes that TensorFlow reports as something else, or not at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .lab import PYTHONS, Lab, Trained, a_lab

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(300)]

UNEQUAL_STEPS = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
x = tf.random.stateless_normal((64, 8), (1, 2))
data = tf.data.Dataset.from_tensor_slices((x, tf.reduce_sum(x, 1))).repeat().batch(8)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((8,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
steps = 12 if strategy.cluster_resolver.task_id == 0 else 8
model.fit(data, epochs=2, steps_per_epoch=steps, verbose=2)
"""
NO_SERVER = """
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab() as made:
        made.line.script("unequal.py", UNEQUAL_STEPS)
        made.line.script("no_server.py", NO_SERVER)
        cluster = {"chief": 1, "worker": 1, "ps": 1}
        made.line.spec("no_server.json", {"script": "no_server.py"}, cluster=cluster)
        yield made


def excerpt(run: Trained) -> list[str]:
    """Return the lines of the log that the panel of the root cause shows."""
    lines = [line.strip() for line in run.err.splitlines()]
    head = next(n for n, line in enumerate(lines) if line.startswith("last "))
    return lines[head + 1 : next(n for n, li in enumerate(lines) if li.startswith("whole log"))]


def test_unequal_steps_are_named(lab: Lab) -> None:
    run = lab.train("run", "-n", "2", "unequal.py")
    assert run.code == 1, run.complaint()
    cause = run.state["diagnosis"]["root_cause"]
    assert cause["reason"].startswith(
        "the tasks train unequal steps per epoch: 12 in worker:0; 8 in worker:1\n"
    )
    assert (cause["docs"], cause["kind"]) == ("docs/failures.md#unequal-steps", "permanent")
    shown = excerpt(run)
    assert any("unequal.py" in line for line in shown)
    assert not any("base_collective_executor.cc" in line for line in shown)


def test_a_ps_or_worker_that_makes_the_chiefs_strategy_is_refused_at_once(lab: Lab) -> None:
    run = lab.train("up", f"--python={PYTHONS['tf215']}", "no_server.json")
    assert run.code == 1, run.complaint()
    cause = run.state["diagnosis"]["root_cause"]
    assert cause["task"] in ("ps:0", "worker:0")
    assert cause["exception"] == "tfcluster_workers.errors.NotServingError"
    assert (cause["file"].endswith("no_server.py"), cause["line"]) == (True, 4)
    lines = [line.strip() for line in run.err.splitlines()]
    for job in ("ps", "worker"):  # on a line of its own, to be pasted
        assert f"--set job.per_task.{job}.module=tfcluster_workers.server" in lines
    assert run.of("run_finished")[0]["status"] == "failed"  # not timed_out: no deadline passed
