"""Without a strategy, `fit` resumes within an epoch; other fits and handlers stay as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import PYTHONS, Boot

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

JOB = """
import multiprocessing, os, signal, threading, time
import keras
import numpy as np

x = np.arange(16, dtype="float32").reshape(16, 1) / 16

def build():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

def fit(*callbacks):
    options = dict(batch_size=4, epochs=2, shuffle=False, verbose=0)
    return build().fit(x, x, callbacks=list(callbacks), **options).history["loss"]

def on(**methods):
    return keras.callbacks.LambdaCallback(**methods)

def backup(name):
    return keras.callbacks.BackupAndRestore(name, save_freq=2 if name == "mid" else "epoch")

class Crash(keras.callbacks.Callback):
    batches = 0
    def on_train_batch_begin(self, batch, logs=None):
        self.batches += 1
        if self.batches == 4:
            raise RuntimeError("crash")

try:
    fit(backup("mid"), Crash())
except RuntimeError:
    print("resumed", np.allclose(fit(backup("mid")), fit()))

def disturb(epoch, logs):
    watcher = signal.getsignal(signal.SIGTERM)
    fit()
    other = threading.Thread(target=lambda: print("other thread", len(fit())))
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
    said = ["resumed True", *disturbed * 2, *["own True"] * 3]
    assert [line for line in ended.out.splitlines() if line in {*said}] == said
