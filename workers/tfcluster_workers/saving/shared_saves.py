"""Has only the chief write a folder or a checkpoint that every worker saves to the same path.

Under MultiWorkerMirroredStrategy every worker must save, since saving may reduce variables across
the workers, and TensorFlow asks scripts to give each of them a path of its own. Many do not: the
workers then overwrite and delete each other's files. Here another worker than the chief saves into
a temporary folder, removes it, and returns once the chief's files are complete, so that it can
restore them. It leaves TensorFlow's `checkpoint` file and old checkpoints to the chief.

To know whether the chief saves to the same path, it reads the chief's announcements in the
key-value store of TensorFlow's coordination service, which all workers of the strategy share. If
the chief saves elsewhere or not at all, the save is left alone. Who takes part in collectives is
the same in every case.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Callable, TypeVar

from tfcluster_workers.hooks import one_writer
from tfcluster_workers.hooks.replacing import replaces
from tfcluster_workers.saving import places, temporary, whole_files, written_files

T = TypeVar("T")
Function = Callable[..., Any]

_KEYS = "tfcluster/saves"
WAIT_S = 5.0
"""Seconds that a worker waits for the chief to begin the same save; a chief that evaluates before
it saves comes later."""
GRACE_S = 1.0
"""Seconds once the chief has begun to save elsewhere: it may do that alone, before this save."""
LATE_WAIT_S = 60.0
"""Seconds that a worker waits in a folder where the chief came later than WAIT_S before."""
END_WAIT_S = 300.0
"""Seconds that a worker waits for the chief to complete a save; its next step waits as well."""
_MOST_REMEMBERED = 1000
_POLL_S = 0.2
"""Longest time in TensorFlow's native code, during which no signal handler runs."""


class StoreError(Exception):
    """The coordination service does not answer: it is off, or a worker has ended."""


class Store:
    """The key-value store that the workers of a MultiWorkerMirroredStrategy share."""

    def put(self, key: str, value: str) -> None:
        """Store `value` under a new key. Raises StoreError."""
        from tensorflow.python.eager import context

        try:
            context.context().set_config_key_value(f"{_KEYS}/{key}", value)
        except Exception as error:
            raise StoreError from error

    def get(self, key: str, within_s: float) -> str | None:
        """Return the value of `key`; None if it has none within that time. Raises StoreError."""
        from tensorflow.python.eager import context
        from tensorflow.python.framework import errors

        try:
            found = context.context().get_config_key_value(
                f"{_KEYS}/{key}", max(1, int(within_s * 1000))
            )
        except (errors.DeadlineExceededError, errors.NotFoundError):
            return None
        except Exception as error:
            raise StoreError from error
        return str(found)


class Chief:
    """The chief: it announces each of its saves, and its end."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._count = 0
        self._lock = threading.Lock()

    def save(self, path: str, write: Callable[[str], T]) -> T:
        """Call `write(path)`."""
        written_files.note_saved(path)
        number = self._announce(path)
        try:
            return write(path)
        finally:
            with contextlib.suppress(StoreError):
                self._store.put(f"{number}/end", "")

    def _announce(self, path: str) -> int:
        identity = ""
        with contextlib.suppress(OSError):
            identity = places.identity(path)
        with self._lock, contextlib.suppress(StoreError):
            self._count += 1  # each number is stored: the others read them one after the other
            number = self._count
            self._store.put(str(number), identity)
        return number


class Other:
    """Another worker: where the chief saves to the same path, it saves into a temporary folder."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._read = 0
        """The number of the chief's last announcement that was read."""
        self._announced: dict[str, int] = {}
        """Identity of a path → the chief's last save to it that has no counterpart here."""
        self._alone: dict[str, None] = {}
        """Identities of the paths that this worker has saved to while the chief did not."""
        self._own: set[str] = set()
        """Their folders, with `#` for numbers."""
        self._late: set[str] = set()
        """Folders in which the chief made the same save after this worker had waited in vain."""
        self._is_apart = False
        """True if the chief began to save to another path when this worker last saved."""

    def save(self, path: str, write: Callable[[str], T]) -> T:
        """Call `write` with `path`, or with a temporary path if the chief saves to `path`."""
        try:
            number = self._find(path)
        except (StoreError, OSError):
            number = None
        if number is None:
            written_files.note_saved(path)
            return write(path)
        folder = temporary.beside(path)
        try:
            result = write(os.path.join(folder, os.path.basename(path.rstrip("/"))))
        finally:
            one_writer.remove(folder)
        with contextlib.suppress(StoreError):
            self._await_end(number)
        return result

    def _find(self, path: str) -> int | None:
        """Return the number of the chief's save to `path`; None if it saves elsewhere or not."""
        identity, began, before = places.identity(path), self._clock(), self._read
        while self._read_next(0.0):
            pass
        until = began + self._patience_s(identity, path)
        while (number := self._take(identity)) is None:
            if self._read > before and os.path.dirname(identity) not in self._late:
                # The chief has begun another save.
                until = min(until, began + (0.0 if self._is_apart else GRACE_S))
            remaining_s = until - self._clock()
            if remaining_s <= 0:
                self._note_alone(identity)
                self._is_apart = self._read > before
                return None
            self._read_next(min(remaining_s, _POLL_S))
        self._is_apart = False
        return number

    def _patience_s(self, identity: str, path: str) -> float:
        folder = os.path.dirname(identity)
        if folder in self._late:
            return LATE_WAIT_S
        return 0.0 if places.looks_own(path) or _without_numbers(folder) in self._own else WAIT_S

    def _note_alone(self, identity: str) -> None:
        folder = os.path.dirname(identity)
        self._late.discard(folder)
        self._own.add(_without_numbers(folder))
        with self._lock:
            self._alone[identity] = None
            _limit(self._alone)

    def _take(self, identity: str) -> int | None:
        with self._lock:
            return self._announced.pop(identity, None)

    def _read_next(self, within_s: float) -> bool:
        """Read the chief's next announcement; return False if there is none within that time."""
        with self._lock:
            identity = self._store.get(str(self._read + 1), within_s)
            if identity is None:
                return False
            self._read += 1
            folder = os.path.dirname(identity)
            self._own.discard(_without_numbers(folder))
            if identity in self._alone:
                del self._alone[identity]
                self._late.add(folder)
            else:
                self._announced[identity] = self._read
                _limit(self._announced)
            return True

    def _await_end(self, number: int) -> None:
        until = self._clock() + END_WAIT_S
        while self._store.get(f"{number}/end", _POLL_S) is None and self._clock() < until:
            pass


def _limit(saves: dict[str, Any]) -> None:
    """Forget the oldest of many saves without a counterpart."""
    if len(saves) > _MOST_REMEMBERED:
        del saves[next(iter(saves))]


def _without_numbers(path: str) -> str:
    """Return `path` with `#` for its numbers: the same for two steps, such as `…/12` and `…/13`."""
    return re.sub(r"\d+", "#", path)


_team: Chief | Other | None = None
"""This task's part in the saves of a strategy that spans workers; None without one."""


class _Now(threading.local):
    """The save in which this thread is."""

    is_saving = False
    """True inside a save: those within it write to the path that it was given."""
    follows = False
    """True while TensorFlow records a save whose files the chief has written."""


_now = _Now()


def save(path: Any, write: Callable[[Any], T]) -> T:
    """Call `write` with the path to save to: `path`, or a temporary one. See the module."""
    name = _path_of(path)
    if name is None or _now.is_saving:
        return write(path)
    if _team is None or name.startswith("ram://"):  # a file system inside each process
        written_files.note_saved(name)
        return write(path)
    _now.is_saving = True
    try:
        return _team.save(name, lambda chosen: write(path if chosen == name else chosen))
    finally:
        _now.is_saving = False


def _path_of(path: Any) -> str | None:
    """Return a path that this thread saves to at once; None in a graph, which saves later."""
    context = sys.modules["tensorflow.python.eager.context"]
    if not isinstance(path, (str, os.PathLike)) or not context.executing_eagerly():
        return None
    name = os.fspath(path)
    return name if isinstance(name, str) and name else None


# -- TensorFlow's and Keras's functions -----------------------------------------------------------


def watch_collective_strategy(module: ModuleType) -> None:
    """Patch MultiWorkerMirroredStrategy: once it has joined, this task is the chief or another."""

    @replaces(vars(module)["CollectiveAllReduceExtended"], "__init__")
    def construct(stock: Function, self: Any, *args: Any, **kwargs: Any) -> None:
        global _team
        stock(self, *args, **kwargs)
        # A script may make a strategy per fold; all of them share the store, and the numbers in it.
        if _team is None and self._in_multi_worker_mode() and self._num_workers > 1:
            _team = (Chief if self.should_checkpoint else Other)(Store())


def watch_checkpoints(module: ModuleType) -> None:
    """Patch tensorflow.python.checkpoint.checkpoint: tf.train.Checkpoint, CheckpointManager."""
    for name in ("Checkpoint", "CheckpointV1"):
        _watch_checkpoint(module, vars(module)[name])


def _watch_checkpoint(module: Any, checkpoint: Any) -> None:
    @replaces(checkpoint, "_write")
    def write(stock: Function, self: Any, file_prefix: Any, *args: Any, **kwargs: Any) -> Any:
        call = inspect.signature(stock).bind(self, file_prefix, *args, **kwargs)
        options = call.arguments.get("options")
        callbacks = getattr(options, "experimental_write_callbacks", None) or ()

        def write_to(prefix: Any) -> Any:
            if prefix is file_prefix:
                return stock(*call.args, **call.kwargs)
            call.arguments["file_prefix"] = prefix
            if callbacks:
                call.arguments["options"] = _without_callbacks(options)
            stock(*call.args, **call.kwargs)
            path = os.fspath(file_prefix)
            for callback in callbacks:
                with _following(callback):
                    module._execute_callbacks([callback], path)
            return path

        if _writes_in_background(module, options):
            return write_to(file_prefix)
        return save(file_prefix, write_to)


def _writes_in_background(module: Any, options: Any) -> bool:
    """Return whether a thread of TensorFlow makes the same call later, without that option."""
    is_asynchronous = getattr(options, "experimental_enable_async_checkpoint", False)
    return is_asynchronous and not module.checkpoint_context.in_preemption_save_context()


def _without_callbacks(options: Any) -> Any:
    options = copy.copy(options)
    options.experimental_write_callbacks = None
    return options


@contextlib.contextmanager
def _following(callback: Any) -> Iterator[None]:
    """Keep TensorFlow's own callback from writing and deleting files; run a script's as it is."""
    _now.follows = str(getattr(callback, "__module__", "")).startswith("tensorflow.")
    try:
        yield
    finally:
        _now.follows = False


def watch_checkpoint_management(module: ModuleType) -> None:
    """Patch what CheckpointManager does with the `checkpoint` file and with old checkpoints."""
    for name in ("update_checkpoint_state_internal", "_delete_file_if_exists"):

        @replaces(module, name)
        def change(stock: Function, *args: Any, **kwargs: Any) -> Any:
            return None if _now.follows else stock(*args, **kwargs)


def watch_saved_models(module: ModuleType) -> None:
    """Patch tensorflow.python.saved_model.save: tf.saved_model.save, and Keras's exports."""

    @replaces(module, "save_and_return_nodes")
    def save_and_return_nodes(
        stock: Function, obj: Any, export_dir: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return save(export_dir, lambda path: stock(obj, path, *args, **kwargs))


def watch_saved_models_of_keras_2(module: ModuleType) -> None:
    """Patch Keras 2's saved_model.save, which writes `keras_metadata.pb` after the SavedModel."""

    @replaces(module, "save")
    def save_model(stock: Function, model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        return save(filepath, lambda path: stock(model, path, *args, **kwargs))


def watch_weights_of_keras_2(module: ModuleType) -> None:
    """Patch Keras 2's `save_weights`: TensorFlow's checkpoints, and HDF5 files."""

    @replaces(module, "save_weights")
    def save_weights(
        stock: Function,
        model: Any,
        filepath: Any,
        overwrite: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        def write(path: Any, *, overwrites: bool = overwrite) -> Any:
            return stock(model, path, overwrites, *args, **kwargs)

        if not _is_hdf5(str(filepath), *args, **kwargs):
            return save(filepath, write)
        if whole_files.may_overwrite(module, filepath, overwrite):
            return whole_files.write_whole(filepath, lambda path: write(path, overwrites=True))
        return None


def _is_hdf5(path: str, save_format: str | None = None, *_: Any, **__: Any) -> bool:
    """Return whether Keras 2 saves weights as HDF5 (saving/legacy/save.py)."""
    if save_format is None:
        return path.endswith((".h5", ".keras", ".hdf5"))
    return save_format.lower().strip() in {"h5", "hdf5", "keras"}
