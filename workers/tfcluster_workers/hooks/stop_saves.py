"""Saves a backup when Keras's `fit` is told to stop, and exits with 42.

A script that passes `BackupAndRestore` to `fit` can continue from a backup. So on SIGTERM all
workers agree on a step (TensorFlow's PreemptionCheckpointHandler), save after it what that callback
saves, and exit. Without the callback, or if the script handles SIGTERM itself, nothing changes.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Callable

from tfcluster_workers import reporting
from tfcluster_workers.hooks import fit_position, one_writer

PREEMPTED = 42
"""The exit code of a task that has saved because it was told to stop."""
PEER_TIMEOUT_MS = 1000
"""Milliseconds to wait for what a peer has announced at the begin of its `fit`."""

_KEY = "tfcluster_saves_when_told_to_stop"
_OF_FIT = "_tfcluster_of_fit"


class _Stop:
    """The agreement of all workers on the step to stop after; one for each process with peers.

    TensorFlow keeps what they agree on in the coordination service, which forgets nothing: a second
    handler would find the first one's end there.
    """

    def __init__(self, strategy: Any) -> None:
        self._told = threading.Event()
        self._back_up: Callable[[], None] | None = None
        self._fit: fit_position.Position | None = None
        self._is_leaving = False
        self._has_peers = one_writer.has_peers(strategy)
        self._peers: list[str] = []
        resolver = strategy.cluster_resolver if self._has_peers else None
        if resolver is not None:
            self._announce(resolver)
        # In a thread of its own, because `fit` may run in the strategy's scope: there the handler's
        # variable would be a collective, and a peer without BackupAndRestore takes no part in it.
        with concurrent.futures.ThreadPoolExecutor(1) as other_thread:
            making = other_thread.submit(_handler, resolver, self._is_told, self._save)
            self._handler = making.result()
        atexit.register(self._handler.__del__)  # ends its threads; they refer to it
        os.register_at_fork(after_in_child=self._release)  # `Process.terminate` ends a child

    def _announce(self, resolver: Any) -> None:
        from tensorflow.python.eager import context

        own = f"{resolver.task_type}:{resolver.task_id}"
        cluster = resolver.cluster_spec().as_dict()
        self._peers = [
            f"{job}:{index}"
            for job in ("chief", "worker")
            for index in range(len(cluster.get(job, ())))
            if f"{job}:{index}" != own
        ]
        context.context().set_config_key_value(f"{_KEY}/{own}", "1")

    def begin(self, back_up: Callable[[], None]) -> None:
        """Watch for SIGTERM while this `fit` runs, with the function that makes a backup."""
        self._fit, self._back_up = fit_position.current(), back_up
        signal.signal(signal.SIGTERM, self._hear)
        reporting.saves_on_sigterm()

    def is_watching(self) -> bool:
        """Return whether a `fit` is watched: others may run in its callbacks, or in threads."""
        return self._back_up is not None

    def end(self) -> bool:
        """Note that a `fit` has ended; return whether the next one needs another agreement.

        With peers, SIGTERM is kept for the next `fit`: TensorFlow ignores SIGTERM there. Without,
        one that came in the last validation must not stop a `fit` that begins much later, unless
        others of this process have peers.
        """
        if not self._is_own_fit():
            return False
        self._fit = self._back_up = None
        if not self._is_leaving:
            reporting.saves_on_sigterm(is_over=True)
        if self._has_peers:
            return False
        with_peers = _stops.get(True)
        self._release(signal.SIG_DFL if with_peers is None else with_peers._hear)
        if self._told.is_set() and not self._is_leaving:
            if with_peers is None:
                reporting.note("SIGTERM came too late for fit to save: the script goes on")
            else:
                with_peers._told.set()
        return self._told.is_set()

    def step_done(self) -> None:
        """Save and exit if this is the step that was agreed on. Cheap enough for every step."""
        if self._is_own_fit():
            self._handler.save_checkpoint_if_preempted()

    def _is_own_fit(self) -> bool:
        return self._fit is not None and self._fit is fit_position.current()

    def _hear(self, *_: Any) -> None:
        self._told.set()

    def _release(self, to: Any = signal.SIG_DFL) -> None:
        if signal.getsignal(signal.SIGTERM) == self._hear:
            signal.signal(signal.SIGTERM, to)

    def _is_told(self) -> bool:
        """Return whether SIGTERM has come, and all peers can save: the handler waits for them."""
        from tensorflow.python.eager import context

        if not self._told.is_set() or self._back_up is None:
            return False
        for peer in self._peers:
            try:
                context.context().get_config_key_value(f"{_KEY}/{peer}", PEER_TIMEOUT_MS)
            except Exception:
                reporting.note(
                    f"SIGTERM: nothing is saved, because {peer} has no BackupAndRestore in its fit"
                )
                return False
        return True

    def _save(self) -> None:
        if self._back_up is not None:
            self._back_up()
        self._is_leaving = True


def _handler(resolver: Any, is_told: Callable[[], bool], save: Callable[[], None]) -> Any:
    """Return a PreemptionCheckpointHandler that saves nothing of its own."""
    import tensorflow as tf
    from tensorflow.python.distribute.failure_handling import failure_handling_util

    experimental = tf.distribute.experimental
    nowhere = os.path.join(tempfile.gettempdir(), f"tfcluster-no-checkpoints-{os.getpid()}")
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(), nowhere, max_to_keep=1)
    config = experimental.TerminationConfig(
        termination_watcher_fn=is_told,
        exit_fn=lambda: sys.exit(PREEMPTED),
        grace_period=0,
        save_fn=save,
    )
    setattr(config, _OF_FIT, True)
    # On Google's machines the handler asks for maintenance events, or refuses to work; elsewhere it
    # asks for up to 5 s whether it is on one.
    on_gcp = failure_handling_util.on_gcp
    failure_handling_util.on_gcp = lambda: False
    try:
        return experimental.PreemptionCheckpointHandler(
            resolver, manager, termination_config=config
        )
    finally:
        failure_handling_util.on_gcp = on_gcp


def is_of_fit(handler: Any) -> bool:
    """Return whether a PreemptionCheckpointHandler is not one of the script's own."""
    return hasattr(getattr(handler, "_termination_config", None), _OF_FIT)


_stops: dict[bool, _Stop] = {}
"""Has-peers → its watch: one process may train without peers and with them in turn."""
_stop: _Stop | None = None
"""The one of the newest `fit`."""
_scripts_own = False
"""True once the script has a PreemptionCheckpointHandler of its own."""


def note_own_handler() -> None:
    """Note that the script has made a PreemptionCheckpointHandler: it agrees with the peers."""
    global _scripts_own
    _scripts_own = True


def fit_begins(model: Any, callbacks: Iterable[Any]) -> None:
    """Watch for SIGTERM if one of the callbacks of `fit` is BackupAndRestore."""
    global _stop
    backup = next((each for each in callbacks if _is_backup(each)), None)
    is_inner = _stop is not None and _stop.is_watching()
    if backup is None or is_inner or _scripts_own or not _is_possible(model):
        return
    try:
        strategy = model.distribute_strategy
        has_peers = one_writer.has_peers(strategy)
        if has_peers not in _stops:
            _stops[has_peers] = _Stop(strategy)
        _stop = _stops[has_peers]
        _stop.begin(lambda: _back_up(backup))
    except Exception as error:  # `fit` works without
        reporting.note(f"fit cannot save when it is told to stop: {error!r}")


def step_done() -> None:
    """Save a backup and exit if the workers have agreed on this step."""
    if _stop is not None:
        _stop.step_done()


@contextlib.contextmanager
def end_of_fit() -> Iterator[None]:
    """Note at the end of the context that its `fit` has ended."""
    global _stop
    try:
        yield
    finally:
        if _stop is not None and _stop.end():
            del _stops[False]
            _stop = None


def _is_backup(callback: Any) -> bool:
    return any(each.__name__ == "BackupAndRestore" for each in type(callback).__mro__)


def _is_possible(model: Any) -> bool:
    """Return whether SIGTERM can be handled here, and a backup of it resumes within an epoch."""
    if threading.current_thread() is not threading.main_thread():
        return False
    own = [signal.SIG_DFL, *(stop._hear for stop in _stops.values())]
    if signal.getsignal(signal.SIGTERM) not in own:
        return False  # the script's own handler
    return fit_position.can_resume_within_epoch(model)


def _back_up(backup: Any) -> None:
    state = getattr(backup, "_training_state", None)
    if state is None:  # Keras 3
        backup._save_model()
        return
    if backup.save_freq == "epoch":
        # Keras takes the saved epoch for one that has ended. Without hooks it repeats this one.
        state._ckpt_saved_epoch.assign(backup._current_epoch - 1)
    state.back_up(epoch=backup._current_epoch)
