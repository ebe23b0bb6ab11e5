"""Without a strategy, `fit` resumes and stops exactly; other fits and handlers stay as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import PYTHONS, Boot

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

JOB = """
import json, multiprocessing, os, signal, threading, time
import keras
import numpy as np
import tensorflow as tf

x = np.arange(16, dtype="float32").reshape(16, 1) / 16
arrays = {"x": x, "y": x, "batch_size": 2, "shuffle": False}
unknown = {"x": tf.data.Dataset.from_tensor_slices((x, x)).batch(4).filter(lambda *_: True)}

def build(steps=1):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"], steps_per_execution=steps)
    return model

def fit(*callbacks, data=unknown, steps=1):
    options = dict(epochs=2, verbose=0, validation_data=(x, x), callbacks=list(callbacks))
    return build(steps).fit(**data, **options).history

def on(**methods):
    return keras.callbacks.LambdaCallback(**methods)

def backup(name):
    return keras.callbacks.BackupAndRestore(name, save_freq=2 if name == "mid" else "epoch")

class At(keras.callbacks.Callback):
    def __init__(self, count, act):
        super().__init__()
        self.left, self.act = count, act
    def on_train_batch_begin(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            self.act()

def crash():
    raise RuntimeError("crash")

def stop(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    while any("TerminationSignal" in thread.name for thread in threading.enumerate()):
        time.sleep(0.05)  # TensorFlow asks each second whether SIGTERM has come

def is_end_of(history, resumed):
    epochs = len(resumed["val_loss"])
    return all(np.allclose(history[key][-epochs:], resumed[key]) for key in history)

def after_crash(at, **options):
    try:
        fit(backup("mid"), At(at, crash), **options)
    except RuntimeError:
        return is_end_of(fit(**options), fit(backup("mid"), **options))

print("within an epoch", after_crash(3, data=arrays, steps=3))
print("at its end, where the data end", after_crash(5))

try:
    fit(backup("stop"), At(6, stop))
except SystemExit as left:
    print("left", left.code)
if os.path.exists("stop/training_metadata.json"):
    print("plain Keras begins", json.load(open("stop/training_metadata.json"))["epoch"])
else:
    from keras.src.distribute.worker_training_state import WorkerTrainingState
    state = WorkerTrainingState(build(), "stop")
    state.restore()
    print("plain Keras begins", *state.maybe_load_initial_counters_from_ckpt(4, 0, "train")[:1])
print("after a stop", is_end_of(fit(), fit(backup("stop"), on(on_test_end=stop))))

def disturb(epoch, logs):
    watcher = signal.getsignal(signal.SIGTERM)
    fit()
    other = threading.Thread(target=lambda: print("other thread", len(fit()["loss"])))
    other.start()
    other.join()
    print("still watched", signal.getsignal(signal.SIGTERM) == watcher != signal.SIG_DFL)
    fork = multiprocessing.get_context("fork")
    runs = fork.Event()
    child = fork.Process(target=lambda: (runs.set(), time.sleep(300)))
    child.start()
    runs.wait()
    child.terminate()
    child.join()
    print("child", child.exitcode)

fit(backup("outer"), on(on_epoch_begin=disturb))
own = lambda *_: None
signal.signal(signal.SIGTERM, own)
show = lambda *_: print("own", signal.getsignal(signal.SIGTERM) is own)
fit(backup("later"), on(on_epoch_end=show))
show()
"""


@pytest.mark.parametrize("python", PYTHONS)
def test_one_process_resumes_and_keeps_its_handlers(
    boot: Boot, tmp_path: Path, python: str
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    ended = boot("script", str(tmp_path / "job.py"), python=PYTHONS[python])
    assert ended.code == 0, ended.err[-3000:]
    disturbed = ["other thread 2", "still watched True", "child -15"]
    resumed = ["within an epoch True", "at its end, where the data end True"]
    stopped = ["left 42", "plain Keras begins 1", "after a stop True"]
    said = [*resumed, *stopped, *disturbed * 2, *["own True"] * 3]
    assert [line for line in ended.out.splitlines() if line in {*said}] == said, ended.out
    assert "SIGTERM came too late" in ended.of("note")[-1]["message"], "in the last validation"
    assert ended.of("saved_elsewhere")
    assert not ended.of("saved"), "no backup is in the checkpoint directory"
