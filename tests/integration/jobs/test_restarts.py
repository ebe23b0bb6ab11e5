"""After one of two workers is killed or told to stop, both resume at the same step.

Each task has its own folder (TFCLUSTER_CHECKPOINT_DIR), and only the chief's has the state until
tfcluster copies it to all of them. The scripts find their state by that variable alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from .lab import PYTHONS, Lab, Trained, a_lab

# Each test starts two TensorFlow workers two or three times.
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

def build():
    keras.utils.set_random_seed(1)
    with strategy.scope():
        made = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        made.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
    return made

model = build()
"""

FIT = (
    SETUP
    + """
import threading, time

class First(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        total = sum(float(np.abs(weight).sum()) for weight in model.get_weights())
        print(f"epoch {epoch} from step {int(model.optimizer.iterations.numpy())}"
              f" weights {total:.6f}", flush=True)

class Losses(keras.callbacks.Callback):
    def __init__(self, name):
        super().__init__()
        self.name = name
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_end(self, batch, logs=None):
        print(self.name, self.epoch, batch, logs["loss"], logs["mae"], flush=True)
    def on_epoch_end(self, epoch, logs=None):
        print(self.name, epoch, "end", logs["loss"], logs["mae"], flush=True)

class AfterSigterm(keras.callbacks.Callback):
    def count(self):
        return sum("TerminationSignal" in thread.name for thread in threading.enumerate())
    def on_epoch_begin(self, epoch, logs=None):
        self.watching = self.count()
    def on_train_batch_end(self, batch, logs=None):
        step = int(model.optimizer.iterations.numpy())
        while told_to_stop and step == 14 and self.count() == self.watching:
            time.sleep(0.05)  # TensorFlow asks each second whether SIGTERM has come

is_told_attempt = os.environ["TFCLUSTER_ATTEMPT"] == sys.argv[3]
told_to_stop = is_told_attempt and os.environ["TFCLUSTER_TASK"] == "worker:1"
freq = sys.argv[2] if sys.argv[2] == "epoch" else int(sys.argv[2])
backup = keras.callbacks.BackupAndRestore(os.path.join(folder, "backup"), save_freq=freq)
fit = {"epochs": 5, "steps_per_epoch": 4, "verbose": 0}
if "after others" in sys.argv and is_told_attempt:
    alone = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(4)])
    alone.compile("sgd", "mse")
    backup_of = lambda name: keras.callbacks.BackupAndRestore(os.path.join(folder, name))
    alone.fit(x, x, verbose=0, callbacks=[backup_of("alone")])
    build().fit(data, steps_per_epoch=4, verbose=0, callbacks=[backup_of("together")])
    alone.fit(x, x, verbose=0, callbacks=[backup_of("alone")])
model.fit(data, **fit, callbacks=[backup, First(), Losses("fit"), AfterSigterm()])
print("left", [name for _, _, names in os.walk(folder) for name in names], flush=True)
build().fit(data, **fit, callbacks=[Losses("undisturbed")])
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


def restarted(lab: Lab, python: str, faults: Sequence[str], *script: str) -> Trained:
    sets = ("--set=supervision.backoff_s=0", "--set=supervision.max_restarts=1")
    chaos = (f"--chaos={fault}" for fault in faults)
    trained = lab.train("run", "-n", "2", f"--python={PYTHONS[python]}", *sets, *chaos, *script)
    assert trained.code == 0, trained.complaint()
    assert trained.state["attempt"] == 1 + len(faults)
    return trained


def assert_both_resume_at(trained: Trained, step: int) -> None:
    """Check the printed state and the first reported step of both workers after the restart."""
    for task in TASKS:
        second = [e for e in trained.of("progress", task) if e["attempt"] == 2]
        assert second[0]["step"] == step
    printed = [trained.said(task, r"^epoch \S+ (from step \d+ weights \S+)") for task in TASKS]
    assert printed[0] == printed[1], "the same state in every epoch of both attempts"
    assert f"from step {step - 1} weights" in " ".join(printed[0])
    assert trained.state["chaos"][0]["resumed_step"] == step
    assert trained.of("restarting")[0]["from_step"] == step - 1
    assert_goodput(trained, lost_steps=11 - (step - 1))


def assert_goodput(trained: Trained, *, lost_steps: int) -> None:
    """Check that the parts of the time are those between the events, and nothing is missing."""
    goodput, ended = trained.state["goodput"], trained.state["ended_at"]
    attempts = range(1, trained.state["attempt"] + 1)
    starts = {
        a: [e["time"] for e in trained.of("task_started") if e["attempt"] == a] for a in attempts
    }
    steps = {a: [e["time"] for e in trained.of("progress") if e["attempt"] == a] for a in attempts}
    assert goodput["restarts"] == len(attempts) - 1
    assert goodput["lost_steps"] == lost_steps
    seconds = goodput["seconds"]
    restore_s = sum(steps[a][0] - max(starts[a]) for a in attempts[1:])
    assert seconds["restore"] == pytest.approx(restore_s, abs=1)
    assert seconds["start"] == pytest.approx(steps[1][0] - trained.state["started_at"], abs=1)
    assert sum(seconds.values()) == pytest.approx(ended - trained.state["started_at"], abs=1)


def assert_told_to_stop_loses_nothing(trained: Trained, *, attempt: int) -> None:
    """Check the end of this attempt: SIGTERM in the middle of an epoch, to worker:1 alone."""
    exited = (e for e in trained.of("task_exited") if e["attempt"] == attempt)
    assert {e["task"]: e["exit_code"] for e in exited} == dict.fromkeys(TASKS, 42)
    restart = trained.of("restarting")[attempt - 1]
    assert restart["from_step"] == 15, "the step after the one in which the news arrived"
    assert "preempted" in restart["reason"]
    for task in TASKS:
        after = [e["step"] for e in trained.of("progress", task) if e["attempt"] == attempt + 1]
        assert after[0] == 16
        resumed, undisturbed = (numbers_of(trained, task, fit) for fit in ("fit", "undisturbed"))
        assert len(undisturbed) == 25, "20 steps and 5 epochs"
        assert resumed.keys() == undisturbed.keys()
        for place, numbers in resumed.items():
            assert numbers == pytest.approx(undisturbed[place], rel=1e-5), place


def numbers_of(trained: Trained, task: str, fit: str) -> dict[tuple[str, str], list[float]]:
    """Return epoch and batch → the last loss and error that `task` printed for them."""
    lines = (line.split() for line in trained.said(task, rf"^{fit} (\d .*)"))
    return {(epoch, batch): list(map(float, numbers)) for epoch, batch, *numbers in lines}


@pytest.mark.parametrize(
    ("python", "keras", "every", "victim", "first"),
    [
        ("newest", "keras", "4", "worker:0", 9),
        ("tf215", "tf.keras", "epoch", "worker:1", 9),
    ],
)
def test_both_workers_resume_from_the_chiefs_backup(
    lab: Lab, python: str, keras: str, every: str, victim: str, first: int
) -> None:
    faults = (f"kill {victim} at step 11", "term worker:1 at step 13 in attempt 2")
    trained = restarted(lab, python, faults, "fit.py", keras, every, "2")
    assert_both_resume_at(trained, first)
    assert_told_to_stop_loses_nothing(trained, attempt=2)
    assert trained.said("worker:0", r"^left (.*)") == ["[]"], "a finished fit deletes its backup"


def test_a_fit_agrees_with_its_peers_after_others_with_and_without_peers(lab: Lab) -> None:
    script = ("fit.py", "keras", "epoch", "1", "after others")
    trained = restarted(lab, "newest", ["term worker:1 at step 13"], *script)
    assert_told_to_stop_loses_nothing(trained, attempt=1)


def test_both_workers_resume_from_the_chiefs_checkpoint_manager(lab: Lab) -> None:
    trained = restarted(lab, "tf215", ["kill worker:1 at step 11"], "loop.py", "tf.keras")
    assert_both_resume_at(trained, 10)
