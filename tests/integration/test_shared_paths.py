"""Every worker saves to one path, in each format: what is there is whole, and each can load it.

The scripts are those of users: `model.save` after `fit`, in a loop, and a CheckpointManager of all
workers on one folder (tensorflow/models#10849). One run for each Keras serves all tests.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import cache

import pytest

from tfcluster.checkpoints.store import load_hint, read_store

from .jobs.lab import PYTHONS, Lab, Trained, a_lab

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

ROUNDS = 2
KERAS = {"2.15": ("tf215", 2), "3": ("newest", 3)}
"""Environment and `keras.version` of each Keras."""

BUILD = """
def build():
    layers = [keras.layers.Input((500,)), keras.layers.Dense(1000), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", keras.losses.MeanSquaredError())
    return model

"""

SCRIPT = (
    f"ROUNDS = {ROUNDS}"
    + """
import os, shutil, time
import numpy as np
import tensorflow as tf

keras, is_keras_2 = tf.keras, hasattr(tf.keras.Model, "save_spec")
strategy = tf.distribute.MultiWorkerMirroredStrategy()
me = strategy.cluster_resolver.task_id
data = tf.data.Dataset.from_tensor_slices((np.ones((8, 500), "f4"), np.ones((8, 1), "f4"))).batch(8)

"""
    + BUILD
    + """

def check(what, values):
    expected = [np.asarray(v) for v in model.trainable_variables]
    same = [any(np.array_equal(a, np.asarray(v)) for v in values) for a in expected]
    print("loaded", what, "whole" if all(same) and same else "DIFFERENT", flush=True)


def save_in_every_format():
    model.save("model.keras")
    check("keras", keras.models.load_model("model.keras").trainable_variables)
    model.save("model.h5")
    check("h5", keras.models.load_model("model.h5").trainable_variables)
    model.save_weights("model.weights.h5")
    other = build()
    other.load_weights("model.weights.h5")
    check("weights", other.trainable_variables)
    model.save("exported") if is_keras_2 else model.export("exported")
    check("saved_model", tf.saved_model.load("exported").variables)
    path = tf.train.Checkpoint(model=model).save("checkpoints/c")
    check("checkpoint", restored(path))
    path = manager.save()
    assert tf.train.latest_checkpoint("managed") == path
    check("manager", restored(path))
    if is_keras_2:
        model.save_weights("tf_weights/w")
        other = build()
        other.load_weights(tf.train.latest_checkpoint("tf_weights"))
        check("tf_weights", other.trainable_variables)


def restored(path):
    other = build()
    tf.train.Checkpoint(model=other).restore(path).expect_partial()
    return other.trainable_variables


# What a script looks at before the training is no data that its workers train on.
numbers = tf.data.Dataset.range(32).batch(8)
keras.layers.Normalization(axis=None).adapt(numbers.map(lambda n: tf.cast(n, tf.float32)))
print([len(list(window)) for window in numbers.window(2)])

with strategy.scope():
    model = build()
manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), "managed", max_to_keep=1)
for number in range(ROUNDS):
    model.fit(data, verbose=0)
    if me == 0:
        tf.saved_model.save(tf.Module(), f"of_the_chief/{number}")  # the chief alone
    save_in_every_format()

# As in TensorFlow's tutorials, but with names that do not say whose they are.
mine = f"apart/{'real' if me == 0 else 'scratch'}/model"
tf.saved_model.save(tf.Module(), mine)
print("kept" if os.path.exists(mine + "/saved_model.pb") else "LOST", flush=True)
if me != 0:
    shutil.rmtree("apart/scratch")
began = time.monotonic()
if me == 1:
    tf.saved_model.save(tf.Module(), "of_the_other/worker_1")
print("alone after", round(time.monotonic() - began, 2), flush=True)

folder = os.environ["TFCLUSTER_CHECKPOINT_DIR"]
backup = keras.callbacks.BackupAndRestore(folder + "/backup", delete_checkpoint=False)
model.fit(data, callbacks=[backup], verbose=0)
model.save(folder + "/model.keras")
model.save(folder + "/model.h5")
model.save_weights(folder + "/model.weights.h5")
model.save(folder + "/exported") if is_keras_2 else model.export(folder + "/exported")
tf.train.Checkpoint(net=model, steps=tf.Variable(7)).save(folder + "/loop")
tf.train.Checkpoint(model).save(folder + "/of_model")
if is_keras_2:
    model.save_weights(folder + "/of_keras_2")
if me == 0:
    np.savez("expected.npz", *model.trainable_variables)
"""
)

LOADING = (
    """
import keras, sys
import numpy as np
import tensorflow as tf
"""
    + BUILD
    + """
expected = [*np.load("expected.npz").values()]
net = model = build()
steps = tf.Variable(0)
for code in sys.argv[1:]:
    model.set_weights([np.zeros_like(v) for v in model.get_weights()])
    loaded = eval(code)
    has_variables = hasattr(loaded, "variables")
    found = [np.asarray(v) for v in (loaded if has_variables else model).variables]
    print(all(any(np.array_equal(a, b) for b in found) for a in expected), code)
"""
)
"""Executes the lines of Python that a summary shows, and compares the weights."""


class Runs(Lab):
    """The runs, each of which is started once."""

    @cache  # noqa: B019 (lives as long as the module's fixture)
    def saved(self, keras: str) -> Trained:
        environment, version = KERAS[keras]
        folder = self.line.cwd = self.line.root / f"work-{keras}"
        folder.mkdir()
        self.line.script("train.py", SCRIPT)
        options = (f"--python={PYTHONS[environment]}", f"--set=keras.version={version}")
        outputs = '--set=checkpoints.outputs=["model*", "exported"]'
        return self.train("run", "-n", "2", *options, outputs, "train.py")


@pytest.fixture(scope="module")
def lab() -> Iterator[Runs]:
    with a_lab() as made:
        yield Runs(made.line)


each_keras = pytest.mark.parametrize("keras", KERAS)


@each_keras
def test_every_worker_loads_what_it_has_just_saved(lab: Runs, keras: str) -> None:
    trained = lab.saved(keras)
    assert trained.code == 0, trained.complaint()
    formats = {"keras", "h5", "weights", "saved_model", "checkpoint", "manager"}
    formats |= {"tf_weights"} if keras != "3" else set()
    for task in ("worker:0", "worker:1"):
        loaded = trained.said(task, r"^loaded (\S+ \S+)$")
        assert sorted(loaded) == sorted(f"{name} whole" for name in formats for _ in range(ROUNDS))


@each_keras
def test_only_the_chiefs_files_are_left_and_no_warning(lab: Runs, keras: str) -> None:
    trained = lab.saved(keras)
    folder = lab.line.root / f"work-{keras}"
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_dir()}
    assert [path for path in left if "temp" in path] == []
    assert [path.name for path in (folder / "managed").glob("*.index")] == ["ckpt-2.index"]
    assert [warning for warning in trained.state["warnings"] if "New files" not in warning] == []
    outputs = {path.name for path in (trained.folder / "outputs").iterdir()}
    assert outputs == {"model.keras", "model.h5", "model.weights.h5", "exported"}


@each_keras
def test_a_script_that_gives_the_workers_paths_of_their_own_does_as_before(
    lab: Runs, keras: str
) -> None:
    trained = lab.saved(keras)
    for task in ("worker:0", "worker:1"):
        assert trained.said(task, r"^(kept|LOST)$") == ["kept"]
        (alone_s,) = trained.said(task, r"^alone after (\S+)$")
        assert float(alone_s) < 30, "a guard against a hang"
    folder = lab.line.root / f"work-{keras}"
    assert sorted(path.name for path in (folder / "apart").iterdir()) == ["real"]
    assert (folder / "of_the_other/worker_1/saved_model.pb").exists()
    assert len([*(folder / "of_the_chief").iterdir()]) == ROUNDS


@each_keras
def test_the_code_that_the_summary_shows_loads_every_checkpoint(lab: Runs, keras: str) -> None:
    trained = lab.saved(keras)
    gathered = read_store(trained.folder / "checkpoints")[0]
    folder = lab.line.root / f"work-{keras}"
    (folder / "loading.py").write_text(LOADING)
    hints = [load_hint(one) for one in gathered]
    ended = subprocess.run(
        [PYTHONS[KERAS[keras][0]], "loading.py", *hints],
        cwd=folder,
        env=lab.line.env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [f"True {hint}" for hint in hints]
    loads = {hint.partition("(")[0] for hint in hints}
    assert len(hints) == (7 if keras == "3" else 8)
    assert loads >= {"keras.models.load_model", "model.load_weights", "tf.train.Checkpoint"}
    assert any("Checkpoint(net=net, steps=steps)" in hint for hint in hints)
