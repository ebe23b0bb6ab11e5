"""Attaches tfcluster's hooks when the user's script imports TensorFlow, Keras or KerasTuner.

Nothing is imported just for the hooks. The loader that the ordinary finders return stays in place
(pickling, `importlib.resources` and lazy loaders depend on it); only the `exec_module` of that one
instance is replaced, once.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Attach = Callable[[ModuleType], None]


class PostImportFinder:
    """A finder, first on `sys.meta_path`, that asks the other finders and calls hooks afterwards.

    It has no base class: `importlib.abc` imports as much as all of tfcluster_workers here.
    """

    def __init__(self) -> None:
        self._attach: dict[str, list[Attach]] = {}
        self._searching: set[str] = set()
        self._slow_import = ""
        """The outermost of `_SLOW_IMPORTS` that is being imported."""

    def after_import(self, name: str, attach: Attach) -> None:
        """Call `attach(module)` once, when the module `name` has been executed."""
        if name in sys.modules:
            call_safely(attach, sys.modules[name])
        else:
            self._attach.setdefault(name, []).append(attach)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_watched = fullname in self._attach or fullname in _SLOW_IMPORTS
        if not is_watched or fullname in self._searching:
            return None
        self._searching.add(fullname)
        try:
            # This walks sys.meta_path again, including this finder, hence the guard above.
            spec = importlib.util.find_spec(fullname)
        except ValueError:
            return None
        finally:
            self._searching.discard(fullname)
        if spec is not None:
            self._shadow(spec, fullname)
        return spec

    def _shadow(self, spec: ModuleSpec, name: str) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            self._slow_import = self._slow_import or (name if name in _SLOW_IMPORTS else "")
            is_slow = name == self._slow_import
            if is_slow:
                _report_phase(f"importing {_SLOW_IMPORTS[name]}")
            try:
                execute(module)
            finally:
                if is_slow:
                    self._slow_import = ""
                    _report_phase("")
            for attach in self._attach.pop(name, []):
                call_safely(attach, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            return  # a loader with slots: no hooks for this module


def _report_phase(name: str) -> None:
    from tfcluster_workers import reporting

    reporting.phase(name)


def call_safely(attach: Attach, module: ModuleType) -> None:
    """Call `attach(module)`; an error in it must never break the user's import."""
    try:
        attach(module)
    except Exception as error:
        from tfcluster_workers import reporting

        reporting.note(f"tfcluster could not attach to {module.__name__}: {error!r}")


def install() -> PostImportFinder:
    """Put a PostImportFinder in front of `sys.meta_path`."""
    finder = PostImportFinder()
    sys.meta_path.insert(0, finder)
    return finder


def attach() -> PostImportFinder:
    """Attach tfcluster's hooks to the modules that the user's script imports from now on."""
    finder = install()
    for name, hooks in _HOOKS.items():
        for module, function in hooks:
            finder.after_import(name, _lazily(module, function))
    return finder


def _lazily(module: str, function: str) -> Attach:
    """Return a hook that imports `module` when it is called: a plain script never pays for it."""

    def hook(imported: ModuleType) -> None:
        getattr(importlib.import_module(f"tfcluster_workers.{module}"), function)(imported)

    return hook


_SLOW_IMPORTS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "torch"}
"""The modules whose import takes so long that views show it; TensorFlow may import JAX."""
_CALLBACKS = (("hooks.keras_hooks", "watch_callback_list"), ("callbacks", "patch"))
_MODELS = (
    ("hooks.keras_hooks", "watch_fit"),
    ("hooks.save_hooks", "watch_models"),
    ("hooks.training_facts", "watch_models"),
)
_DATA_OF_KERAS_2 = (("hooks.fit_position", "watch_keras_2_data"),)
_LOGS_OF_KERAS_2 = (("hooks.fit_position", "watch_keras_2_logs"),)
_SAVED_MODELS = (("hooks.training_facts", "watch_saved_models"),)
_SAVING_LIBRARY = (("saving.whole_files", "watch_saving_library"),)
_HDF5_FORMAT = (("saving.whole_files", "watch_hdf5_format"),)
_WEIGHTS_OF_KERAS_2 = (("saving.shared_saves", "watch_weights_of_keras_2"),)
_SAVED_MODELS_OF_KERAS_2 = (("saving.shared_saves", "watch_saved_models_of_keras_2"),)
_HOOKS: dict[str, tuple[tuple[str, str], ...]] = {
    "tensorflow.python.distribute.collective_all_reduce_strategy": (
        ("hooks.tensorflow_hooks", "watch_collective_strategy"),
        ("saving.shared_saves", "watch_collective_strategy"),
    ),
    "tensorflow.python.distribute.parameter_server_strategy_v2": (
        ("hooks.tensorflow_hooks", "watch_parameter_server_strategy"),
    ),
    "tensorflow.python.eager.context": (
        ("hooks.tensorflow_hooks", "watch_contacts"),
        ("hooks.tensorflow_hooks", "watch_devices"),
    ),
    "tensorflow.python.eager.backprop": (("hooks.tensorflow_hooks", "watch_gradients"),),
    "tensorflow.python.ops.gradients_util": (("hooks.training_facts", "watch_graph_gradients"),),
    "tensorflow.python.distribute.mirrored_strategy": (
        ("hooks.training_facts", "watch_mirrored_strategy"),
    ),
    "tensorflow.python.distribute.cluster_resolver.tfconfig_cluster_resolver": (
        ("hooks.training_facts", "watch_resolver"),
    ),
    "tensorflow.python.eager.polymorphic_function.polymorphic_function": (
        ("hooks.step_clocks", "watch_functions"),
    ),
    "tensorflow.python.framework.func_graph": (("hooks.step_clocks", "watch_tracing"),),
    "tensorflow.python.distribute.cross_device_ops": (("hooks.step_clocks", "watch_all_reduce"),),
    "tensorflow.python.distribute.cross_device_utils": (
        ("hooks.training_facts", "watch_collectives"),
    ),
    "tensorflow.python.distribute.input_lib": (
        ("hooks.first_batches", "watch_distributed"),
        ("hooks.double_sharding", "watch_distributed"),
        ("hooks.step_clocks", "watch_distributed_iterators"),
    ),
    "jax._src.api": (("hooks.training_facts", "watch_jax"),),
    "jax._src.clusters": (("hooks.jax_cluster", "watch_clusters"),),
    "jax._src.distributed": (("hooks.jax_cluster", "watch_distributed"),),
    "jax._src.xla_bridge": (("hooks.jax_cluster", "watch_backends"),),
    "torch.distributed.distributed_c10d": (("hooks.torch_cluster", "choose_interface"),),
    "horovod.common.basics": (("hooks.training_facts", "watch_horovod"),),
    "tensorflow.python.training.server_lib": (("hooks.tensorflow_hooks", "watch_server"),),
    "tensorflow.python.client.session": (("hooks.tensorflow_hooks", "watch_session"),),
    "tensorflow.python.distribute.failure_handling.failure_handling": (
        ("hooks.tensorflow_hooks", "watch_preemption"),
    ),
    "tensorflow.python.data.ops.iterator_ops": (
        ("hooks.iterator_ends", "watch_iterators"),
        ("hooks.first_batches", "watch_iterators"),
        ("hooks.step_clocks", "watch_iterators"),
    ),
    "tensorflow.python.data.ops.multi_device_iterator_ops": (
        ("hooks.iterator_ends", "watch_multi_device_iterators"),
    ),
    "tensorflow_estimator.python.estimator.estimator": (
        ("hooks.tensorflow_hooks", "watch_estimator"),
    ),
    "tensorflow_estimator.python.estimator.training": (
        ("hooks.tensorflow_hooks", "watch_evaluator"),
    ),
    "keras": (("keras3.patching", "attach"),),
    # Keras 2.15 and Keras 3 share the name `keras.src`; their contents differ.
    "keras.src.callbacks": _CALLBACKS,
    "keras.src.callbacks.callback_list": (("hooks.keras_hooks", "watch_callback_list"),),
    "tf_keras.src.callbacks": _CALLBACKS,
    "keras.src.engine.training": _MODELS,
    "tf_keras.src.engine.training": _MODELS,
    "keras.src.models.model": _MODELS,
    "keras.src.engine.data_adapter": _DATA_OF_KERAS_2,
    "tf_keras.src.engine.data_adapter": _DATA_OF_KERAS_2,
    "keras.src.utils.tf_utils": _LOGS_OF_KERAS_2,
    "tf_keras.src.utils.tf_utils": _LOGS_OF_KERAS_2,
    "keras_tuner.src.engine.base_tuner": (("hooks.tuner_hooks", "watch_search"),),
    "keras_tuner.engine.base_tuner": (("hooks.tuner_hooks", "watch_search"),),
    "keras_tuner.src.utils": (("hooks.tuner_hooks", "watch_state"),),
    "keras_tuner.src.engine.oracle": (("hooks.tuner_hooks", "watch_oracle"),),
    "keras_tuner.src.distribute.oracle_client": (("hooks.tuner_hooks", "watch_client"),),
    "keras_tuner.src.distribute.oracle_chief": (("hooks.tuner_hooks", "watch_chief"),),
    "tensorflow.python.checkpoint.checkpoint": (
        ("hooks.save_hooks", "watch_checkpoints"),
        ("hooks.training_facts", "watch_checkpoints"),
        ("saving.shared_saves", "watch_checkpoints"),
    ),
    "tensorflow.python.training.saver": (
        ("hooks.save_hooks", "watch_graph_saver"),
        ("hooks.training_facts", "watch_graph_saver"),
    ),
    "keras.src.saving.saving_api": _SAVED_MODELS,
    "tf_keras.src.saving.saving_api": _SAVED_MODELS,
    "tensorflow.python.checkpoint.checkpoint_management": (
        ("saving.shared_saves", "watch_checkpoint_management"),
    ),
    "tensorflow.python.saved_model.save": (
        ("saving.shared_saves", "watch_saved_models"),
        ("hooks.save_hooks", "watch_saved_models"),
    ),
    "tensorflow.python.lib.io.file_io": (("saving.written_files", "watch_tensorflow_files"),),
    "tensorflow.python.lib.io.tf_record": (("saving.written_files", "watch_record_writers"),),
    "tensorflow.python.ops.gen_io_ops": (("saving.written_files", "watch_write_file"),),
    "h5py._hl.files": (("saving.written_files", "watch_hdf5"),),
    # Keras 2.15 and Keras 3 alike
    "keras.src.saving.saving_lib": _SAVING_LIBRARY,
    "tf_keras.src.saving.saving_lib": _SAVING_LIBRARY,
    "keras.src.saving.legacy.hdf5_format": _HDF5_FORMAT,
    "tf_keras.src.saving.legacy.hdf5_format": _HDF5_FORMAT,
    "keras.src.legacy.saving.legacy_h5_format": _HDF5_FORMAT,
    "keras.src.export": (("saving.whole_files", "watch_exports"),),
    "keras.src.saving.legacy.save": _WEIGHTS_OF_KERAS_2,
    "tf_keras.src.saving.legacy.save": _WEIGHTS_OF_KERAS_2,
    "keras.src.saving.legacy.saved_model.save": _SAVED_MODELS_OF_KERAS_2,
    "tf_keras.src.saving.legacy.saved_model.save": _SAVED_MODELS_OF_KERAS_2,
}
"""Imported module → (module of tfcluster_workers, its function to call with the import) pairs."""
