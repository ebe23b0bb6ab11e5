"""Attaches reporting to TensorFlow and Keras at the moment the user's script imports them."""

from __future__ import annotations

from types import ModuleType

from tfcluster_workers import import_hooks

TYPE_CHECKING = False  # see boot
if TYPE_CHECKING:
    from typing import Callable


def attach() -> import_hooks.PostImportFinder:
    """Watch the imports of this process from now on."""
    finder = import_hooks.install()
    for watchers in (_WATCHERS, _SAVES):
        for name, watch in watchers.items():
            finder.after_import(name, watch)
    return finder


# The watchers are imported when they are needed: a plain Python script never pays for them.
def _collective_strategy(module: ModuleType) -> None:
    from tfcluster_workers import tensorflow_watch

    tensorflow_watch.watch_collective_strategy(module)


def _parameter_server_strategy(module: ModuleType) -> None:
    from tfcluster_workers import tensorflow_watch

    tensorflow_watch.watch_parameter_server_strategy(module)


def _server(module: ModuleType) -> None:
    from tfcluster_workers import tensorflow_watch

    tensorflow_watch.watch_server(module)


def _session(module: ModuleType) -> None:
    from tfcluster_workers import tensorflow_watch

    tensorflow_watch.watch_session(module)


def _preemption(module: ModuleType) -> None:
    from tfcluster_workers import tensorflow_watch

    tensorflow_watch.watch_preemption(module)


def _estimator(module: ModuleType) -> None:
    from tfcluster_workers import tensorflow_watch

    tensorflow_watch.watch_estimator(module)


def _estimator_training(module: ModuleType) -> None:
    from tfcluster_workers import tensorflow_watch

    tensorflow_watch.watch_evaluator(module)


def _iterators(module: ModuleType) -> None:
    from tfcluster_workers import iterator_ends

    iterator_ends.watch_iterators(module)


def _multi_device_iterators(module: ModuleType) -> None:
    from tfcluster_workers import iterator_ends

    iterator_ends.watch_multi_device_iterators(module)


def _callback_list(module: ModuleType) -> None:
    from tfcluster_workers import keras_watch

    keras_watch.watch_callback_list(module)


def _callbacks(module: ModuleType) -> None:
    from tfcluster_workers import callbacks

    _callback_list(module)
    callbacks.mend(module)


def _fit(module: ModuleType) -> None:
    from tfcluster_workers import keras_watch

    keras_watch.watch_fit(module)


def _keras(module: ModuleType) -> None:
    from tfcluster_workers import keras3

    keras3.attach()


def _search(module: ModuleType) -> None:
    from tfcluster_workers import tuner_watch

    tuner_watch.watch_search(module)


def _oracle(module: ModuleType) -> None:
    from tfcluster_workers import tuner_watch

    tuner_watch.watch_oracle(module)


def _oracle_client(module: ModuleType) -> None:
    from tfcluster_workers import tuner_watch

    tuner_watch.watch_client(module)


def _oracle_chief(module: ModuleType) -> None:
    from tfcluster_workers import tuner_watch

    tuner_watch.watch_chief(module)


def _search_state(module: ModuleType) -> None:
    from tfcluster_workers import tuner_watch

    tuner_watch.watch_state(module)


def _checkpoints(module: ModuleType) -> None:
    from tfcluster_workers import save_watch

    save_watch.watch_checkpoints(module)


def _graph_saver(module: ModuleType) -> None:
    from tfcluster_workers import save_watch

    save_watch.watch_graph_saver(module)


def _models(module: ModuleType) -> None:
    from tfcluster_workers import save_watch

    save_watch.watch_models(module)


_WATCHERS: dict[str, Callable[[ModuleType], None]] = {
    "tensorflow.python.distribute.collective_all_reduce_strategy": _collective_strategy,
    "tensorflow.python.distribute.parameter_server_strategy_v2": _parameter_server_strategy,
    "tensorflow.python.training.server_lib": _server,
    "tensorflow.python.client.session": _session,
    "tensorflow.python.distribute.failure_handling.failure_handling": _preemption,
    "tensorflow.python.data.ops.iterator_ops": _iterators,
    "tensorflow.python.data.ops.multi_device_iterator_ops": _multi_device_iterators,
    "tensorflow_estimator.python.estimator.estimator": _estimator,
    "tensorflow_estimator.python.estimator.training": _estimator_training,
    "keras": _keras,
    # Keras 2.15 and Keras 3 share the name `keras.src`, their insides differ.
    "keras.src.callbacks": _callbacks,
    "keras.src.callbacks.callback_list": _callback_list,
    "tf_keras.src.callbacks": _callbacks,
    "keras.src.engine.training": _fit,
    "tf_keras.src.engine.training": _fit,
    "keras.src.backend.tensorflow.trainer": _fit,
    "keras_tuner.src.engine.base_tuner": _search,
    "keras_tuner.engine.base_tuner": _search,
    "keras_tuner.src.utils": _search_state,
    "keras_tuner.src.engine.oracle": _oracle,
    "keras_tuner.src.distribute.oracle_client": _oracle_client,
    "keras_tuner.src.distribute.oracle_chief": _oracle_chief,
}

_SAVES: dict[str, Callable[[ModuleType], None]] = {
    "tensorflow.python.checkpoint.checkpoint": _checkpoints,
    "tensorflow.python.training.saver": _graph_saver,
    "keras.src.engine.training": _models,
    "tf_keras.src.engine.training": _models,
    "keras.src.models.model": _models,
}
