"""Has every Keras save models and weights beside the named file, and move them there when whole.

All tasks of a machine share the working directory, and `model.save("model.keras")` is called in
each of them: Keras writes in place, so that the tasks write into each other's file. With this,
whichever task is the last to finish leaves its file, which is always whole; a reader, or a task
that is killed while it saves, never sees a part. Each task still saves, since saving may reduce
variables across the workers.

What is patched are the functions that create the files. `Model.save`, `Model.save_weights`,
`keras.saving.save_model` and `ModelCheckpoint` of Keras 2.15, tf_keras and Keras 3 all call them by
the name in their module, after they have asked about an existing file.
"""

from __future__ import annotations

import inspect
import os
import stat
from types import ModuleType
from typing import Any, Callable, TypeVar

from tfcluster_workers.hooks import one_writer
from tfcluster_workers.hooks.replacing import replaces
from tfcluster_workers.saving import places, temporary

T = TypeVar("T")
Function = Callable[..., Any]

_EXPORTS = ("export_onnx", "export_openvino", "export_litert")

_REMOTE = ("/cns/", "/cfs/", "/gcs/", "/hdfs/", "/readahead/")
"""Paths that Keras writes through TensorFlow's file systems (utils/file_utils.py)."""


def watch_saving_library(module: ModuleType) -> None:
    """Patch `saving_lib` of any Keras: `.keras`, `.weights.h5`, sharded weights."""
    for name in ("save_model", "save_weights_only"):

        @replaces(module, name)
        def save(stock: Function, model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
            return write_whole(filepath, lambda path: stock(model, path, *args, **kwargs))


def watch_hdf5_format(module: ModuleType) -> None:
    """Patch `hdf5_format` of Keras 2, or `legacy_h5_format` of Keras 3: models in HDF5 files."""

    @replaces(module, "save_model_to_hdf5")
    def save(
        stock: Function,
        model: Any,
        filepath: Any,
        overwrite: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if may_overwrite(module, filepath, overwrite):
            write_whole(filepath, lambda path: stock(model, path, True, *args, **kwargs))


def may_overwrite(module: Any, path: Any, overwrite: bool) -> bool:
    """Return whether Keras may write to `path`; ask the user where Keras would."""
    is_there = isinstance(path, (str, os.PathLike)) and os.path.isfile(path)
    return overwrite or not is_there or module.io_utils.ask_to_proceed_with_overwrite(path)


def watch_exports(module: ModuleType) -> None:
    """Patch Keras 3's exports to files, which `Model.export` imports from `keras.src.export`."""
    for name in filter(vars(module).__contains__, _EXPORTS):

        @replaces(module, name)
        def export(stock: Function, model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
            call = inspect.signature(stock).bind(model, filepath, *args, **kwargs)
            tells = call.arguments.get("verbose") in (None, True)
            call.arguments["verbose"] = False  # Keras would print the temporary path

            def write(path: Any) -> Any:
                call.arguments["filepath"] = path
                return stock(*call.args, **call.kwargs)

            result = write_whole(filepath, write)
            if tells:
                from keras.src.utils import io_utils

                io_utils.print_msg(f"Saved artifact at '{filepath}'.")
            return result


def write_whole(path: Any, write: Callable[[Any], T]) -> T:
    """Call `write` with a path in a temporary folder, then move what it wrote to `path`.

    It gets `path` itself if that is no local file (a URL, an open file, a pipe), or if no folder
    can be made beside it: then Keras's own error names the path.
    """
    target = _local_target(path)
    folder = None if target is None else temporary.make_beside(target)
    if target is None or folder is None:
        return write(path)
    try:
        named = os.path.join(folder, os.path.basename(path))
        result = write(named)
        new = os.path.join(folder, os.path.basename(target))  # `path` may be a link to it
        if os.path.isfile(named):
            os.rename(named, new)
        if os.path.isfile(new) and os.path.exists(target):
            os.chmod(new, stat.S_IMODE(os.stat(target).st_mode))  # as if written in place
        _move_contents(folder, os.path.dirname(target))
    finally:
        one_writer.remove(folder)
    return result


def _local_target(path: Any) -> str | None:
    """Return the file that `path` means, links followed; None if it cannot be moved into place."""
    if not isinstance(path, (str, os.PathLike)):
        return None
    name = os.fspath(path)
    if not name or not isinstance(name, str) or places.is_url(name) or name.startswith(_REMOTE):
        return None
    target = os.path.realpath(name)
    is_movable = not os.path.exists(target) or os.path.isfile(target) or os.path.isdir(target)
    return target if is_movable else None


def _move_contents(folder: str, into: str) -> None:
    """Move the files below `folder` to the same places below `into`, those that name others last.

    Sharded weights have a `.json` that names their parts; a folder of Keras 3 has a `config.json`.
    """
    for place, _, names in os.walk(folder, topdown=False):
        there = os.path.join(into, os.path.relpath(place, folder))
        os.makedirs(there, exist_ok=True)
        for name in sorted(names, key=lambda each: each.endswith(".json")):
            os.replace(os.path.join(place, name), os.path.join(there, name))
