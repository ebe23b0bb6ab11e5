"""Dropping the last reference to a dataset iterator does not wait for the iterator to end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tfcluster_workers.hooks import iterator_ends

from .conftest import PYTHONS, Boot, run_plain

HANG_S = 20.0
"""The time-out of waiting for something that should happen immediately."""


class Tensor:
    """An eager tensor that owns an iterator: its end sets `is_ending` and waits for `may_end`."""

    def __init__(
        self, may_end: threading.Event | None = None, is_ending: threading.Event | None = None
    ) -> None:
        self.may_end = may_end
        self.is_ending = is_ending or threading.Event()
        ended_in: list[str] = []
        self.ending = (threading.Event(), ended_in)

    def numpy(self) -> None: ...

    def __del__(self) -> None:
        self.is_ending.set()
        if self.may_end:
            self.may_end.wait(HANG_S)
        ended, ended_in = self.ending
        ended_in.append(threading.current_thread().name)
        ended.set()


class Dataset:
    def __init__(self, *inputs: Any, captured: Any = None) -> None:
        self.inputs = inputs
        self.captured = captured

    def _inputs(self) -> Any:
        return self.inputs


class CacheDataset(Dataset):
    def __init__(self, filename: bytes, *inputs: Any) -> None:
        super().__init__(*inputs)
        self._filename = Filename(filename)


class Filename:
    def __init__(self, name: bytes) -> None:
        self.name = name

    def numpy(self) -> bytes:
        return self.name


class Owned:
    """A stand-in for OwnedIterator: it owns its resource if made from a dataset."""

    def __init__(self, dataset: Any = None, resource: Any = None, devices: Any = ()) -> None:
        self._dataset = dataset
        self._resource = resource
        self._device_iterators = devices


@pytest.fixture
def ender() -> Iterator[iterator_ends.Ender]:
    """Return an Ender that lets two iterators wait."""
    ender = iterator_ends.Ender(max_waiting=2, exit_wait_s=HANG_S)
    yield ender
    ender.finish()


@pytest.fixture
def owned(ender: iterator_ends.Ender) -> type[Owned]:
    class Iterator(Owned):
        pass

    iterator_ends.end_in_background(Iterator, "_resource", ender)
    return Iterator


def test_an_iterator_ends_in_another_thread_while_its_owner_continues(owned: type[Owned]) -> None:
    may_end = threading.Event()
    tensor = Tensor(may_end)
    ended, ended_in = tensor.ending
    iterator = owned(Dataset(), tensor)
    del tensor
    del iterator
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(HANG_S)
    assert ended_in == [iterator_ends.NAME]


def test_objects_held_by_the_dataset_end_in_the_same_thread(owned: type[Owned]) -> None:
    tensor = Tensor()
    ended, ended_in = tensor.ending
    iterator = owned(Dataset(captured=tensor), tensor)
    del tensor
    del iterator
    assert ended.wait(HANG_S)
    assert ended_in == [iterator_ends.NAME]


@pytest.mark.parametrize("how", ["components", "symbolic"])
def test_an_iterator_that_owns_nothing_is_left_alone(owned: type[Owned], how: str) -> None:
    tensor = Tensor()
    _, ended_in = tensor.ending
    iterator = owned(None, tensor)
    if how == "symbolic":
        iterator = owned(Dataset(captured=tensor), object())
    del tensor
    del iterator
    assert ended_in == [threading.current_thread().name]


def test_if_too_many_iterators_wait_the_next_one_ends_in_place(owned: type[Owned]) -> None:
    may_end, is_ending = threading.Event(), threading.Event()
    blocking = owned(Dataset(), Tensor(may_end, is_ending))
    tensors = [Tensor(), Tensor(), Tensor()]
    endings = [tensor.ending for tensor in tensors]
    iterators = [owned(Dataset(), tensors.pop(0)) for _ in range(3)]
    del blocking
    assert is_ending.wait(HANG_S)
    while iterators:
        del iterators[0]
    current_thread = threading.current_thread().name
    assert [ended_in for _, ended_in in endings] == [[], [], [current_thread]]
    may_end.set()
    assert all(ended.wait(HANG_S) for ended, _ in endings)
    assert [ended_in for _, ended_in in endings[:2]] == [[iterator_ends.NAME]] * 2


@pytest.mark.parametrize(
    ("dataset", "in_place"),
    [
        (Dataset(CacheDataset(b"/data/cache")), True),
        (Dataset(Dataset(), CacheDataset(b"")), False),
        (type("_SnapshotDataset", (Dataset,), {})(), True),
        (type("CacheDataset", (Dataset,), {"_filename": object()})(), True),
    ],
    ids=["a cache in a file", "a cache in memory", "a snapshot", "an unknown file name"],
)
def test_a_cache_file_is_released_when_its_iterator_is_dropped(
    owned: type[Owned], dataset: Any, in_place: bool
) -> None:
    tensor = Tensor()
    ended, ended_in = tensor.ending
    of_a_device = owned(Dataset(captured=tensor), tensor)
    iterator = owned(dataset, tensor, [of_a_device])
    del tensor, of_a_device
    del iterator
    assert ended.wait(HANG_S)
    current_thread = threading.current_thread().name
    assert ended_in == [current_thread if in_place else iterator_ends.NAME]


PRELUDE = """
import os, sys, threading, time
from tfcluster_workers.hooks import iterator_ends

class Tensor:
    def __init__(self, end):
        self.end = end
    def numpy(self): ...
    def __del__(self):
        self.end()

class Dataset:
    def _inputs(self):
        return []

class Owned:
    def __init__(self, dataset=None, resource=None):
        self._resource = resource

def give(end, **options):
    ender = iterator_ends.Ender(**options)
    iterator_ends.end_in_background(Owned, "_resource", ender)
    Owned(Dataset(), Tensor(end))
    return ender
"""
AT_THE_END = {
    "a pending end is awaited": ("give(lambda: (time.sleep(0.3), os.write(1, b'ended')))", "ended"),
    "an endless end is abandoned": (
        "give(threading.Event().wait, exit_wait_s=0.1)\nos.write(1, b'left')",
        "left",
    ),
    "a later iterator ends in place": (
        "import atexit\n"
        "name = lambda: os.write(1, threading.current_thread().name.encode())\n"
        "atexit.register(lambda: Owned(Dataset(), Tensor(name)))\n"
        "give(lambda: None)",
        "MainThread",
    ),
    "a forked child has its own thread": (
        "blocked = threading.Event()\n"
        "give(lambda: blocked.wait(20))\n"
        "def write():\n"
        "    os.write(1, threading.current_thread().name[:8].encode())\n"
        "if os.fork() == 0:\n"
        "    Owned(Dataset(), Tensor(write))\n"
        "else:\n"
        "    os.wait()\n"
        "    blocked.set()",
        "tfcluste",
    ),
}


@pytest.mark.linux("the stand-in for macOS starts scripts in its own way")
@pytest.mark.parametrize("case", AT_THE_END)
def test_iterators_that_end_at_process_exit(case: str) -> None:
    script, out = AT_THE_END[case]
    ended = run_plain(sys.executable, "-W", "ignore", "-c", PRELUDE + script)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, out, "")


JOB = """
import gc, threading
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras = tf.keras
returned = threading.Event()
waited = []

def numbers():
    try:
        while True:
            yield [1.0], [2.0]
    finally:
        waited.append(returned.wait(30))

spec = (tf.TensorSpec([1]), tf.TensorSpec([1]))
slow = tf.data.Dataset.from_generator(numbers, output_signature=spec).batch(4)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(slow.with_options(options), steps_per_epoch=3, verbose=0)

# Each iterator holds the cache's lock file until it has ended, and our thread is busy with another.
cached = tf.data.Dataset.from_tensor_slices((tf.ones([40, 1]), tf.ones([40, 1])))
cached = cached.cache("cache").repeat().batch(4).with_options(options)
for _ in range(2):
    model.fit(cached, steps_per_epoch=2, verbose=0)
    model.evaluate(cached, steps=1, verbose=0)
keras.backend.clear_session()
gc.collect()
print("waited", len(waited))
returned.set()

left = iter(tf.data.Dataset.range(10 ** 6).map(lambda x: x + 1, tf.data.AUTOTUNE).prefetch(9))
next(left)
"""


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_fit_returns_before_its_iterator_has_ended(boot: Boot, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    ended = boot("script", str(tmp_path / "job.py"), python=PYTHONS["newest"])
    assert ended.code == 0, ended.err[-3000:]
    assert "waited 0" in ended.out
