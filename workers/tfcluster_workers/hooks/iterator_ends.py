"""Destroys dataset iterators in a background thread, so that `fit` returns when its steps are done.

`fit`, `evaluate` and `predict` drop the last reference to their iterator at the end. TensorFlow
then joins tf.data's threads, including autotune's, in the thread that dropped it: the one that
trains. With busy cores that takes seconds, while every peer waits for its next step
(docs/guides/iterators.md has the figures). TensorFlow joins without the GIL, so another thread can
do it.
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
    """An iterator's attributes; it holds the only references, so clearing it ends the iterator."""

NAME = "tfcluster-iterator-ends"
MAX_WAITING = 4
"""Iterators that may wait for their end; each keeps its buffers until then."""
EXIT_WAIT_S = 30.0
"""Seconds that the end of the process waits for iterators to end."""
_MARK = "_tfcluster_ends_in_background"
_WRITES = ("_SnapshotDataset", "_LegacySnapshotDataset", "_SaveDataset")


class Ender:
    """A daemon thread that clears the attributes of iterators; it starts with the first one."""

    def __init__(self, *, max_waiting: int = MAX_WAITING, exit_wait_s: float = EXIT_WAIT_S) -> None:
        self._max_waiting = max_waiting
        self._exit_wait_s = exit_wait_s
        # `put` may be called from `__del__` at any point of any thread: this queue allows it.
        self._boxes: queue.SimpleQueue[Box | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._is_open = False
        self._has_finished = False
        self._is_registered = False
        self._inherited: list[Any] = []

    def start(self) -> None:
        """Start the thread. `take` cannot do that: a `__del__` cannot always start a thread."""
        with self._starting:
            if self._thread is not None or self._has_finished:
                return
            thread = threading.Thread(target=self._run, name=NAME, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return  # this user's thread limit: iterators end where they are dropped
            self._thread, self._is_open = thread, True
            if not self._is_registered:  # both registrations survive a fork
                self._is_registered = True
                atexit.register(self.finish)
                os.register_at_fork(after_in_child=self.forget_thread)

    def take(self, attributes: Box) -> None:
        """Clear `attributes` and have the thread drop its contents; do nothing if there is no room.

        Only the box is passed on, never a reference to a tensor: the thread that drops the last
        reference ends the iterator, and this thread could be the one.
        """
        if not self._is_open or self._boxes.qsize() >= self._max_waiting:
            return
        box = dict(attributes)
        attributes.clear()
        self._boxes.put(box)

    def finish(self) -> None:
        """Wait for the iterators that are ending; later ones end where they are dropped.

        If a thread returned from TensorFlow while the interpreter finalizes, Python would end it
        inside C++ code, which aborts the process.
        """
        thread, self._is_open, self._has_finished = self._thread, False, True
        if thread is not None:
            self._boxes.put(None)
            thread.join(self._exit_wait_s)

    def forget_thread(self) -> None:
        """Start over in a forked child: it has no thread, and the parent ends the queued boxes."""
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
    """Patch tensorflow.python.data.ops.iterator_ops, which has the iterators of `iter(dataset)`."""
    end_in_background(vars(module)["OwnedIterator"], "_iterator_resource", _ender)


def watch_multi_device_iterators(module: ModuleType) -> None:
    """Patch tensorflow.python.data.ops.multi_device_iterator_ops, for distributed datasets."""
    iterator = vars(module)["OwnedMultiDeviceIterator"]
    end_in_background(iterator, "_multi_device_iterator_resource", _ender)


def end_in_background(iterator: Any, resource: str, ender: Ender) -> None:
    """Have `ender` end the iterators of this class, which own the tensor named `resource`."""
    construct: Callable[..., None] = iterator.__init__

    @functools.wraps(construct)
    def __init__(self: Any, dataset: Any = None, *args: Any, **kwargs: Any) -> None:
        construct(self, dataset, *args, **kwargs)
        # An iterator made from components owns nothing; a symbolic tensor is not one yet.
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
    """Remove the mark from the per-device iterators too: they hold the same resource."""
    for each in vars(iterator).get("_device_iterators", ()):
        vars(each).pop(_MARK, None)


def writes_files(dataset: Any) -> bool:
    """Return whether the end of an iterator frees files that the next iterator may need at once.

    `cache(filename)` holds a lock file until its iterator has ended: the next one would fail with
    "There appears to be a concurrent caching iterator running" (cache_dataset_ops.cc).
    """
    dataset = getattr(dataset, "_dataset", dataset)  # TF1's adapter hides the dataset itself
    name = type(dataset).__name__
    if name in _WRITES or (name == "CacheDataset" and _is_in_a_file(dataset)):
        return True
    return any(writes_files(each) for each in dataset._inputs())


def _is_in_a_file(cache: Any) -> bool:
    try:
        return bool(cache._filename.numpy())
    except AttributeError:
        return True  # unknown before the graph runs
