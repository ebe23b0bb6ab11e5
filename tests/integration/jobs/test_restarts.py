"""After one of two workers is killed, both resume at the same step, with Keras or a custom loop.

Each task has its own folder (TFCLUSTER_CHECKPOINT_DIR), and only the chief's has the state until
tfcluster copies it to all of them. The scripts find their state by that variable alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .lab import PYTHONS, Lab, Trained, a_lab

# Each test starts two TensorFlow workers twice.
TASKS = ("worker:0", "worker:1")
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

SETUP = """
import importlib, os, sys
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras = tf.keras if sys.argv[1] == "tf.keras" else importlib.import_module(sys.argv[1])
folder = os.environ["TFCLUSTER_CHECKPOINT_DIR"]

random = np.random.default_rng(0)
x = random.normal(size=(48, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).batch(12).repeat()
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
data = data.with_options(options)
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.01, momentum=0.9), loss="mse")
"""

FIT = (
    SETUP
    + """
class First(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        total = sum(float(np.abs(weight).sum()) for weight in model.get_weights())
        print(f"epoch {epoch} from step {int(model.optimizer.iterations.numpy())}"
              f" weights {total:.6f}", flush=True)

freq = sys.argv[2] if sys.argv[2] == "epoch" else int(sys.argv[2])
backup = keras.callbacks.BackupAndRestore(os.path.join(folder, "backup"), save_freq=freq)
model.fit(data, epochs=4, steps_per_epoch=4, verbose=0, callbacks=[backup, First()])
print("left", [name for _, _, names in os.walk(folder) for name in names], flush=True)
"""
)

LOOP = (
    SETUP
    + """
from tfcluster_workers import reporting

done = tf.Variable(0, dtype=tf.int64, trainable=False)
checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, done=done)
manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)
checkpoint.restore(manager.latest_checkpoint)
print(f"epoch - from step {int(done.numpy())} weights"
      f" {sum(float(np.abs(weight).sum()) for weight in model.get_weights()):.6f}", flush=True)
batches = iter(strategy.experimental_distribute_dataset(data))

@tf.function
def step(batch):
    def replica(batch):
        with tf.GradientTape() as tape:
            error = tf.reduce_sum((model(batch[0]) - batch[1]) ** 2) / 12
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(error, variables), variables))
        return error
    return strategy.reduce("SUM", strategy.run(replica, args=(batch,)), axis=None)

for number in range(int(done.numpy()) + 1, 17):
    step(next(batches))
    done.assign(number)
    if number % 3 == 0:
        manager.save(checkpoint_number=number)
    reporting.progress(number)
"""
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab() as made:
        made.line.script("fit.py", FIT)
        made.line.script("loop.py", LOOP)
        yield made


def killed_and_restarted(lab: Lab, python: str, fault: str, *script: str) -> Trained:
    sets = ("--set=supervision.backoff_s=0", "--set=supervision.max_restarts=1")
    options = (f"--python={PYTHONS[python]}", *sets, "--chaos", fault)
    trained = lab.train("run", "-n", "2", *options, *script)
    assert trained.code == 0, trained.complaint()
    assert trained.state["attempt"] == 2
    return trained


def assert_both_resume_at(trained: Trained, step: int) -> None:
    """Check the printed state and the first reported step of both workers after the restart."""
    for task in TASKS:
        second = [e for e in trained.of("progress", task) if e["attempt"] == 2]
        assert second[0]["step"] == step
    printed = [trained.said(task, r"^epoch \S+ (from step \d+ weights \S+)") for task in TASKS]
    assert printed[0] == printed[1], "the same state in every epoch of both attempts"
    assert f"from step {step - 1} weights" in " ".join(printed[0])
    (record,) = trained.state["chaos"]
    assert record["resumed_step"] == step
    (restart,) = trained.of("restarting")
    assert restart["from_step"] == step - 1
    assert_goodput(trained)


def assert_goodput(trained: Trained) -> None:
    """Check that the parts of the time are those between the events, and nothing is missing."""
    goodput, ended = trained.state["goodput"], trained.state["ended_at"]
    starts = [e["time"] for e in trained.of("task_started") if e["attempt"] == 2]
    steps = {a: [e["time"] for e in trained.of("progress") if e["attempt"] == a] for a in (1, 2)}
    assert goodput["restarts"] == 1
    seconds = goodput["seconds"]
    assert seconds["restore"] == pytest.approx(steps[2][0] - max(starts), abs=1)
    assert seconds["start"] == pytest.approx(steps[1][0] - trained.state["started_at"], abs=1)
    assert sum(seconds.values()) == pytest.approx(ended - trained.state["started_at"], abs=1)


@pytest.mark.parametrize(
    ("python", "keras", "every", "victim", "first"),
    [
        ("newest", "keras", "3", "worker:0", 10),
        ("tf215", "tf.keras", "epoch", "worker:1", 9),
    ],
)
def test_both_workers_resume_from_the_chiefs_backup(
    lab: Lab, python: str, keras: str, every: str, victim: str, first: int
) -> None:
    fault = f"kill {victim} at step 11"
    trained = killed_and_restarted(lab, python, fault, "fit.py", keras, every)
    assert_both_resume_at(trained, first)
    assert trained.said("worker:0", r"^left (.*)") == ["[]"], "a finished fit deletes its backup"


def test_both_workers_resume_from_the_chiefs_checkpoint_manager(lab: Lab) -> None:
    trained = killed_and_restarted(lab, "tf215", "kill worker:1 at step 11", "loop.py", "tf.keras")
    assert_both_resume_at(trained, 10)
