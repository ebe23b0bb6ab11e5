"""Each option and setting of the example jobs takes effect under real TensorFlow.

One process tries all of them and prints the results as lines of JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import PYTHONS, Ended, Start

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]


FIT = """
import json, os, sys, threading
from tfcluster_workers import keras_choice
from tfcluster_workers.jobs import custom_loop, keras_mnist
from tfcluster_workers.jobs.parts import job_start

keras = keras_choice.load()
import tensorflow as tf

SMALL = ["--epochs=2", "--examples=96", "--global-batch=48"]
whole = job_start.examples
# float16 is slow on a CPU.
job_start.examples = lambda args, split: whole(args, split).take(96)

def show(what, **seen):
    print(json.dumps({"what": what, **seen}), flush=True)

def dtypes(model):
    return sorted({(layer.compute_dtype, layer.variable_dtype)
                   for layer in model.layers if layer.trainable_variables})

def settings(**values):
    os.environ["TFCLUSTER_SETTINGS"] = json.dumps({"strategy": "default", **values})

make_callbacks = keras_mnist.make_callbacks
def counting(keras, model, *more):
    show("dtypes", of=dtypes(model), optimizer=type(model.optimizer).__name__)
    count = lambda batch, logs: ends.append(batch)
    counter = keras.callbacks.LambdaCallback(on_train_batch_end=count)
    return [*make_callbacks(keras, model, *more), counter]
keras_mnist.make_callbacks = counting

for number, values in enumerate([
    {},
    {"precision": "mixed_bfloat16", "steps_per_execution": 2},
    {"precision": "mixed_float16"},
]):
    settings(**values)
    os.environ["TFCLUSTER_CHECKPOINT_DIR"] = os.path.abspath(f"fit-{number}")
    ends = []
    loss, accuracy = keras_mnist.train(keras, keras_mnist.parse(SMALL))
    show("fit", ends=ends, loss=loss)

os.environ["TFCLUSTER_CHECKPOINT_DIR"] = os.path.abspath("loop")
loops = []
class Loop(custom_loop.Loop):
    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        loops.append(self)
custom_loop.Loop = Loop
custom_loop.train(keras, custom_loop.parse(["--epochs=3", *SMALL[1:]]))
(loop,) = loops
show("loop", dtypes=dtypes(loop.model), optimizer=type(loop.optimizer).__name__)
"""
DATA = """
import json, shutil, time
from tfcluster_workers.data import prepare
from tfcluster_workers.jobs import custom_loop
from tfcluster_workers.jobs.parts import job_start
import tensorflow as tf

def show(what, **seen):
    print(json.dumps({"what": what, **seen}), flush=True)

for policy in ("auto", "file", "data", "off"):
    args = custom_loop.parse(["--shard-policy", policy])
    made = job_start.batches(args, tf.data.Dataset.range(8), 4, training=True)
    show("policy", asked=policy, set=made.options().experimental_distribute.auto_shard_policy.name)

for prefetch, wanted in (("0", 2), ("5", 12)):
    pulled = []
    def source():
        for number in range(100):
            pulled.append(number)
            yield number
    examples = tf.data.Dataset.from_generator(
        source, output_signature=tf.TensorSpec((), tf.int64))
    args = custom_loop.parse(["--prefetch", prefetch])
    iterator = iter(job_start.batches(args, examples, 2, training=True))
    next(iterator)
    while len(pulled) < wanted:
        time.sleep(0.01)
    time.sleep(0.2)
    show("prefetch", asked=prefetch, pulled=len(pulled))

prepare.prepare("synthetic_digits", prepare.data_dir())
for cache in ("--cache", "--no-cache"):
    shutil.copytree(prepare.data_dir(), "data")
    args = custom_loop.parse([cache, "--examples=100", "--data-dir=data"])
    examples = job_start.examples(args, "train")
    once = sum(1 for _ in examples)
    shutil.rmtree("data")
    try:
        again = sum(1 for _ in examples)
    except tf.errors.OpError:
        again = 0
    show("cache", asked=cache, once=once, again=again)
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the data folder, which the first test that needs it prepares."""
    return str(tmp_path_factory.mktemp("tfds"))


def lines_of(ended: Ended, what: str) -> list[dict[str, Any]]:
    assert ended.code == 0, ended.err[-4000:]
    records = [json.loads(line) for line in ended.out.splitlines() if line.startswith('{"what"')]
    return [line for line in records if line["what"] == what]


def test_precision_and_steps_per_execution_take_effect(
    start: Start, tmp_path: Path, prepared: str
) -> None:
    (tmp_path / "fit.py").write_text(FIT)
    env = {"TFDS_DATA_DIR": prepared}
    task = start("script", str(tmp_path / "fit.py"), python=PYTHONS["newest"], env=env)
    ended = task.end(timeout_s=380)

    plain, bfloat16, float16 = lines_of(ended, "dtypes")
    assert plain["of"] == [["float32", "float32"]]
    # The last layer returns logits in float32.
    assert bfloat16["of"] == [["bfloat16", "float32"], ["float32", "float32"]]
    assert float16["of"] == [["float16", "float32"], ["float32", "float32"]]
    assert float16["optimizer"].startswith("LossScaleOptimizer")
    assert "computes in bfloat16/float32, keeps float32 variables" in ended.out

    each, second, _ = (line["ends"] for line in lines_of(ended, "fit"))
    assert each == [0, 1] * 2
    assert second == [1] * 2

    losses = [line["loss"] for line in lines_of(ended, "fit")]
    assert losses == pytest.approx([losses[0]] * 3, rel=0.05)

    (loop,) = lines_of(ended, "loop")
    assert loop["dtypes"] == [["float16", "float32"], ["float32", "float32"]]
    assert loop["optimizer"].startswith("LossScaleOptimizer")
    epochs = [line.split() for line in ended.out.splitlines() if line.startswith("epoch ")][-3:]
    assert float(epochs[-1][3]) < float(epochs[0][3])

    notes = [event["message"] for event in ended.of("note")]
    assert [note for note in notes if "slower than float32" in note] == [
        note for note in notes if note.startswith("mixed_float16 works on a CPU")
    ]
    assert sum("mixed_float16 works on a CPU" in note for note in notes) == 1


def test_sharding_prefetch_and_cache_take_effect(
    start: Start, tmp_path: Path, prepared: str
) -> None:
    (tmp_path / "data.py").write_text(DATA)
    env = {"TFDS_DATA_DIR": prepared}
    task = start("script", str(tmp_path / "data.py"), python=PYTHONS["tf215"], env=env)
    ended = task.end(timeout_s=380)
    for line in lines_of(ended, "policy"):
        assert line["set"] == line["asked"].upper()
    none, five = (line["pulled"] for line in lines_of(ended, "prefetch"))
    # tf.data prepares one batch in advance even without prefetch.
    assert none <= 4
    assert five >= 12
    cached, uncached = lines_of(ended, "cache")
    assert (cached["once"], cached["again"]) == (100, 100)
    assert (uncached["once"], uncached["again"]) == (100, 0)


def test_a_batch_smaller_than_the_replicas_ends_a_job_with_one_line(start: Start) -> None:
    replicas = ("--strategy=mirrored", "--logical-cpus=2", "--global-batch=1")
    module = ("module", "tfcluster_workers.jobs.keras_mnist")
    ended = start(*module, *replicas, python=PYTHONS["tf215"]).end(timeout_s=380)
    assert ended.code == 1
    message = "--global-batch 1 is smaller than the 2 replicas: each needs at least one example"
    assert f"\nkeras_mnist: {message}" in ended.err
    assert "Traceback" not in ended.err
    (event,) = ended.of("task_error")
    assert (event["exception"], event["message"][: len(message)]) == ("OptionError", message)
