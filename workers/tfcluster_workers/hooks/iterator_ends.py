"""Ends dataset iterators on a thread of their own, so that `fit` returns when its steps are done.

`fit`, `evaluate` and `predict` drop the last reference to their iterator on the way out. TensorFlow
then joins tf.data's threads, autotune's among them, in whatever thread dropped it: in the one that
trains, for seconds where the cores are busy, while every peer waits for its next step
(docs/iterators.md has the figures). It joins without the GIL, so another thread can do it.
"""

from __future__ import annotations

import atexit
import functools
import os
import queue
import threading
from types import ModuleType

TYPE_CHECKING = False  # see boot
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Box = dict[str, Any]
    """All that an iterator held: the only references, so that whoever clears it ends it."""

NAME = "tfcluster-iterator-ends"
AT_MOST = 4
"""Iterators that may wait for their end: each keeps its buffers until then."""
PATIENCE_S = 30.0
"""How long the end of the process waits for the end of iterators."""
_MARK = "_tfcluster_ends_elsewhere"
_WRITES = ("_SnapshotDataset", "_LegacySnapshotDataset", "_SaveDataset")


class Ender:
    """A daemon thread that clears the boxes it is given; it starts with the first iterator."""

    def __init__(self, *, at_most: int = AT_MOST, patience_s: float = PATIENCE_S) -> None:
        self._at_most = at_most
        self._patience_s = patience_s
        # `put` may be called from `__del__` at any point of any thread: this queue allows it.
        self._boxes: queue.SimpleQueue[Box | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._is_open = False
        self._has_finished = False
        self._is_registered = False
        self._inherited: list[Any] = []

    def start(self) -> None:
        """Be ready to take. Not in `take`: a thread cannot be started from every `__del__`."""
        with self._starting:
            if self._thread is not None or self._has_finished:
                return
            thread = threading.Thread(target=self._run, name=NAME, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return  # no more threads for this user: iterators end where they are dropped
            self._thread, self._is_open = thread, True
            if not self._is_registered:  # both outlive a fork
                self._is_registered = True
                atexit.register(self.finish)
                os.register_at_fork(after_in_child=self.forget_thread)

    def take(self, belongings: Box) -> None:
        """Empty `belongings` and have its contents dropped elsewhere; leave it if there is no room.

        One box changes hands, never a reference to a tensor: whoever lets go of that last, ends the
        iterator, and this thread could still hold it when the other one has dropped its own.
        """
        if not self._is_open or self._boxes.qsize() >= self._at_most:
            return
        box = dict(belongings)
        belongings.clear()
        self._boxes.put(box)

    def finish(self) -> None:
        """Wait for the iterators that are ending; those to come end where they are dropped.

        A thread that came back from TensorFlow to an interpreter on its way out would be ended in
        the midst of C++, which aborts the process.
        """
        thread, self._is_open, self._has_finished = self._thread, False, True
        if thread is not None:
            self._boxes.put(None)
            thread.join(self._patience_s)

    def forget_thread(self) -> None:
        """In a forked child there is no thread, and what the queue holds is the parent's to end."""
        self._inherited.append(self._boxes)
        self._boxes = queue.SimpleQueue()
        self._thread, self._is_open = None, False
        self._starting = threading.Lock()

    def _run(self) -> None:
        while True:
            box = self._boxes.get()
            if box is None:
                return
            box.clear()


_ender = Ender()


def watch_iterators(module: ModuleType) -> None:
    """tensorflow.python.data.ops.iterator_ops: what `iter(dataset)` gives."""
    end_elsewhere(vars(module)["OwnedIterator"], "_iterator_resource", _ender)


def watch_multi_device_iterators(module: ModuleType) -> None:
    """tensorflow.python.data.ops.multi_device_iterator_ops: a distributed dataset's iterators."""
    iterator = vars(module)["OwnedMultiDeviceIterator"]
    end_elsewhere(iterator, "_multi_device_iterator_resource", _ender)


def end_elsewhere(iterator: Any, resource: str, ender: Ender) -> None:
    """Have the iterators of this class, which own the tensor named `resource`, ended by `ender`."""
    construct: Callable[..., None] = iterator.__init__

    @functools.wraps(construct)
    def __init__(self: Any, dataset: Any = None, *args: Any, **kwargs: Any) -> None:
        construct(self, dataset, *args, **kwargs)
        # Made of components it owns nothing, and a symbolic tensor is no iterator yet.
        if dataset is None or not hasattr(vars(self).get(resource), "numpy"):
            return
        if writes_files(dataset):
            _end_in_place(self)
            return
        ender.start()
        vars(self)[_MARK] = True

    def __del__(self: Any) -> None:
        if vars(self).pop(_MARK, False):
            ender.take(vars(self))

    iterator.__init__ = __init__
    iterator.__del__ = __del__


def _end_in_place(iterator: Any) -> None:
    """The iterators of its devices hold its resource too."""
    for each in vars(iterator).get("_device_iterators", ()):
        vars(each).pop(_MARK, None)


def writes_files(dataset: Any) -> bool:
    """Whether an iterator's end gives files free that the next iterator may want at once.

    `cache(filename)` holds a lock file until its iterator has ended: the next one would fail with
    "There appears to be a concurrent caching iterator running" (cache_dataset_ops.cc).
    """
    dataset = getattr(dataset, "_dataset", dataset)  # TF1's adapter shows only what is below
    name = type(dataset).__name__
    if name in _WRITES or (name == "CacheDataset" and _is_in_a_file(dataset)):
        return True
    return any(writes_files(each) for each in dataset._inputs())


def _is_in_a_file(cache: Any) -> bool:
    try:
        return bool(cache._filename.numpy())
    except AttributeError:
        return True  # not known before the graph runs
