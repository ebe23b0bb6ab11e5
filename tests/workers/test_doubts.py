"""A task reports what would make its exit code 0 doubtful, and nothing of it changes the script."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .conftest import PYTHONS, Boot, Ended


def doubts(ended: Ended) -> list[tuple[str, str | None, int | None]]:
    assert ended.code == 0, ended.err[-3000:]
    return [(one["about"], one.get("exception"), one.get("line")) for one in ended.of("doubt")]


ENDS = """
import atexit, threading
from tfcluster_workers import doubts, reporting

doubts.watch()  # as the hooks do
@atexit.register
def upload():
    raise OSError("no room")
atexit.register(int, "library")
def train():
    reporting.progress(1)
    raise ValueError("bad batch")
def watch():
    raise KeyError("a monitor")
for target in (train, watch):
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
"""


def test_a_thread_that_trains_and_a_function_of_atexit_are_reported(
    boot: Boot, tmp_path: Path, python: str
) -> None:
    (tmp_path / "job.py").write_text(ENDS)
    ended = boot("script", str(tmp_path / "job.py"), python=python)
    found = doubts(ended)
    assert found[0] == ("thread", "ValueError", 12)
    if python == sys.executable:  # Python 3.9 tells nobody
        assert found[1:] == [("exit", "OSError", 8)]
    printed = ("ValueError: bad batch", "KeyError: 'a monitor'", "OSError: no room")
    assert [ended.err.count(error) for error in printed] == [1, 1, 1], "as without tfcluster"


KERAS = """
import sys
import numpy as np
import tensorflow as tf

def batches(count):
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).take(8 * count).batch(8)

class Fails(tf.keras.callbacks.Callback):
    def __init__(self, error):
        super().__init__()
        self.error = error
    def on_epoch_end(self, epoch, logs=None):
        raise self.error

def leave(error):
    try:
        model.fit(batches(2), verbose=0, callbacks=[Fails(error)])
    except BaseException as caught:
        assert caught is error
    else:
        raise AssertionError("it returned")

x = np.ones((64, 4), "float32")
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
for _ in batches(0):
    pass
if getattr(tf.keras, "__version__", "2").startswith("3."):
    model.fit(batches(0), verbose=0)  # Keras 2 raises an error
model.fit(batches(2), epochs=0, verbose=0)
leave(KeyError("std"))
model.fit(batches(2), verbose=0)
leave(KeyboardInterrupt())
leave(SystemExit(0))
for _ in batches(0):
    pass
"""


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("tensorflow", list(PYTHONS))
def test_a_fit_that_does_not_return_and_data_without_an_element_are_reported(
    boot: Boot, tmp_path: Path, tensorflow: str
) -> None:
    (tmp_path / "job.py").write_text(KERAS)
    ended = boot("script", str(tmp_path / "job.py"), python=PYTHONS[tensorflow])
    passes = 2 if tensorflow == "newest" else 1
    empty = [("data", None, None)] * passes
    assert doubts(ended) == [*empty, ("fit", "KeyError", 14), ("fit", "SystemExit", 14)]
    assert [one["about"] for one in ended.of("doubt_over")] == [*["data"] * passes, "fit"]
