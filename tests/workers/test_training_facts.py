"""A task reports what its training rests on: whom it meets, and what it has restored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import PYTHONS, Boot

JAX = """
class State:
    num_processes, client = 1, None
    def initialize(self, processes):
        self.num_processes = processes
    def shutdown(self):
        print("waits for the others")
"""
HOROVOD = """
class HorovodBasics:
    def __init__(self, processes):
        self.processes = processes
    def init(self):
        pass
    def size(self):
        return self.processes
"""


def stand_in(folder: Path, module: str, text: str) -> None:
    """Make a module of a package that this environment does not have."""
    *parents, name = module.split(".")
    for parent in parents:
        folder = folder / parent
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
    (folder / f"{name}.py").write_text(text)


@pytest.mark.parametrize(
    ("begin", "meets"),
    [("", False), ("State().initialize(1)", False), ("State().initialize(2)", True)],
)
def test_jax_trains_alone_unless_it_is_initialized(
    boot: Boot, tmp_path: Path, python: str, begin: str, meets: bool
) -> None:
    stand_in(tmp_path, "jax._src.api", "def grad(f): return f\ndef value_and_grad(f): return f\n")
    stand_in(tmp_path, "jax._src.distributed", JAX)
    imports = "from jax._src.api import grad\nfrom jax._src.distributed import State\n"
    (tmp_path / "train.py").write_text(f"{imports}{begin}\ngrad(len)\n")
    ended = boot("script", "train.py", python=python)
    assert ended.code == 0, ended.err
    assert [event["way"] for event in ended.of("trains")] == ["jax"]
    assert bool(ended.of("meets_peers")) is meets


@pytest.mark.parametrize("processes", [1, 2])
def test_horovod_meets_others_if_horovodrun_has_started_it(
    boot: Boot, tmp_path: Path, python: str, processes: int
) -> None:
    stand_in(tmp_path, "horovod.common.basics", HOROVOD)
    (tmp_path / "train.py").write_text(
        f"from horovod.common.basics import HorovodBasics\nHorovodBasics({processes}).init()\n"
        "from tfcluster_workers.hooks import training_facts\ntraining_facts.note_gradient()\n"
    )
    ended = boot("script", "train.py", python=python)
    assert ended.code == 0, ended.err
    assert [event["way"] for event in ended.of("trains")] == ["" if processes > 1 else "horovod"]
    assert bool(ended.of("meets_peers")) is (processes > 1)


RESTORES = """
import json, os, sys
import numpy as np
import tensorflow as tf
keras = tf.keras

def new():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

model, x, y = new(), np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
saved = tf.train.Checkpoint(model=model)
manager = tf.train.CheckpointManager(saved, "ckpt", 3)
manager.save()
manager.save()
model.save("model.keras")
os.makedirs("backup", exist_ok=True)
model.save_weights("backup/latest.weights.h5")
with open("backup/training_metadata.json", "w") as file:
    json.dump({"epoch": 2, "batch": 0}, file)

saved.restore(manager.latest_checkpoint)
keras.models.load_model("model.keras")
model.load_weights("backup/latest.weights.h5")
if sys.argv[1] == "trains":
    model.fit(x, y, verbose=0)
    saved.restore(manager.checkpoints[0])
"""


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize(("tensorflow", "then"), [("newest", "trains"), ("tf215", "ends")])
def test_what_a_task_restores_before_it_trains_is_reported_once(
    boot: Boot, tmp_path: Path, tensorflow: str, then: str
) -> None:
    (tmp_path / "train.py").write_text(RESTORES)
    cluster = {"worker": ["127.0.0.1:5001", "127.0.0.1:5002"]}
    config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    ended = boot("script", "train.py", then, python=PYTHONS[tensorflow], env={"TF_CONFIG": config})
    assert ended.code == 0, ended.err
    (restored,) = ended.of("restored")
    assert set(restored["names"]) - {"latest.weights.h5"} == {"ckpt-2", "model.keras", "backup-2.0"}
    assert len(ended.of("trains")) == (then == "trains")
    assert not ended.of("meets_peers")
