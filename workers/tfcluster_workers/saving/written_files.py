"""Reports the files that this task writes, so that tfcluster can name those that two tasks wrote.

Nothing can make `np.save("predictions.npy", …)` safe in every task: the file then holds what one
of them wrote last, or a mix. An audit hook (PEP 578) sees each file that Python opens. h5py and
TensorFlow's own files are opened in native code and are seen by hooks of their own. A file that
this task has written, or a temporary one, and that Python renames counts under its new name, too.

Files that are no results are left out: hidden ones, libraries, devices, this task's own folders.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
from _thread import get_ident

TYPE_CHECKING = False  # see boot
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable

    Function = Callable[..., Any]

MOST = 300
"""Files of one task that are reported."""
_AT_ONCE = 30
"""Files that are reported when they are opened; later ones wait for `_PER_REPORT` of them."""
_PER_REPORT = 20
"""A number of files that fits into one event (64 KiB), however long their paths are."""
_LONGEST = 500
"""Characters of a path; a longer one is left out."""
_WRITES = os.O_WRONLY | os.O_RDWR
_NO_RESULT = re.compile(
    r"\..*|__pycache__|workertemp_.*|tmp\w{8}|.*\.(lock|pyc|tmp[0-9a-f]{8,})", re.DOTALL
)
"""Names of files and folders that are no results.

`tmp…` is of the module tempfile, `….tmp…` of TensorFlow's atomic writes.
"""
_SAVES = "/workertemp_"
"""The beginning of the folders in which tfcluster's hooks save (saving.temporary)."""
_SYSTEM = ("/dev/", "/proc/", "/sys/", "/run/")
_FOLDERS = ("TFCLUSTER_CHECKPOINT_DIR", "TFCLUSTER_TENSORBOARD_DIR")


class WrittenFiles:
    """The files that this task has written so far, each reported once."""

    def __init__(self, report: Callable[[list[dict[str, str]]], bool], workdir: str) -> None:
        """Prepare; `report` returns False if it could not send the files now."""
        self._report = report
        self._seen: set[str] = set()
        self._waiting: list[dict[str, str]] = []
        self._workdir = os.path.join(workdir, "")
        self._foreign: tuple[str, ...] = ()
        self._busy: set[int] = set()
        """The threads inside `note`, which opens files itself."""

    def note(self, path: Any, *, may_be_folder: bool = True) -> None:
        """Note a file that is opened for writing, unless it is no result. Never raises."""
        thread = get_ident()
        if thread in self._busy or len(self._seen) >= MOST or isinstance(path, int):
            return
        self._busy.add(thread)
        try:
            name = os.fsdecode(path)
            name = name if "://" in name else os.path.abspath(name)
            if name not in self._seen and (may_be_folder or not os.path.isdir(name)):
                self._note(name)
        except Exception:  # a path that cannot be read, a folder that is gone
            pass
        finally:
            self._busy.discard(thread)

    def note_renamed(self, source: Any, target: Any) -> None:
        """Note `target` if this task has written `source`, maybe as a temporary file. Never raises.

        A folder that `temporary` has made is left out: whole files are moved from there.
        """
        try:
            path = os.path.abspath(os.fsdecode(source))
            folder, name = os.path.split(path)
            is_temporary = bool(_NO_RESULT.fullmatch(name)) and not os.path.isdir(path)
            if path in self._seen or (is_temporary and _SAVES not in folder):
                self.note(target, may_be_folder=False)
        except Exception:  # a path that cannot be read, a folder that is gone
            pass

    def _note(self, path: str) -> None:
        if len(path) > _LONGEST or not self._is_result(path):
            return
        from tfcluster_workers.saving import places

        self._seen.add(path)
        self._waiting.append({"path": path, "file": places.digest(path)})
        if len(self._seen) <= _AT_ONCE or len(self._waiting) >= _PER_REPORT:
            self.flush()

    def _is_result(self, path: str) -> bool:
        self._foreign = self._foreign or tuple(_foreign_folders(self._workdir))
        if path.startswith(self._foreign):
            return False
        inside = path[len(self._workdir) :] if path.startswith(self._workdir) else path
        return not any(map(_NO_RESULT.fullmatch, inside.split("/")))

    def flush(self) -> None:
        """Report the files that are still to be reported."""
        while self._waiting and self._report(self._waiting[:_PER_REPORT]):
            del self._waiting[:_PER_REPORT]


def _foreign_folders(workdir: str) -> list[str]:
    """Return folders whose files are no results, each with a slash."""
    from tfcluster_workers.saving import places

    packages = (path for path in sys.path if path.endswith(("site-packages", "dist-packages")))
    libraries = (sys.prefix, sys.base_prefix, *packages)
    named = (os.environ.get(name, "") for name in _FOLDERS)
    own = (folder for folder in named if places.looks_own(folder))  # else all tasks share it
    data = (os.environ.get("TFDS_DATA_DIR", ""),)
    folders = (os.path.join(os.path.abspath(f), "") for f in (*libraries, *own, *data) if f)
    return [*_SYSTEM, *(folder for folder in folders if not workdir.startswith(folder))]


_files: WrittenFiles | None = None
"""The files of this process; None without an agent to report them to."""


def watch() -> None:
    """Report every file that Python opens for writing from now on, until the process ends."""
    global _files
    try:
        files = _files = WrittenFiles(_send, os.getcwd())
    except OSError:
        return  # its working directory is gone

    def see(event: str, args: tuple[Any, ...]) -> None:
        # Called for each of some 100,000 events while TensorFlow is imported.
        if event == "open":
            try:
                path, mode, flags = args
                if flags & _WRITES and _is_kept(mode, flags):
                    files.note(path, may_be_folder=False)
            except (TypeError, ValueError):  # a script's own `sys.audit("open", …)`
                pass
        elif event == "os.rename" and len(args) == 4 and args[2:] == (-1, -1):  # no `dir_fd`
            files.note_renamed(*args[:2])  # of `os.replace`, too

    sys.addaudithook(see)
    atexit.register(files.flush)


def _is_kept(mode: str | None, flags: int) -> bool:
    """Return whether a file that is opened like this may have the name of another, and is not
    only added to.

    The module tempfile chooses unique names, with O_EXCL and without a mode, or opens a folder.
    """
    return not flags & (os.O_APPEND | os.O_DIRECTORY | (0 if mode else os.O_EXCL))


def _send(files: list[dict[str, str]]) -> bool:
    from tfcluster_workers import event_channel  # `reporting` takes 10 ms to import

    return event_channel.current().offer({"type": "wrote", "files": files})


def note_saved(path: str) -> None:
    """Note a folder or a checkpoint that TensorFlow writes; a URL is one, too."""
    if _files is not None:
        _files.note(path)


# -- files that native code opens -----------------------------------------------------------------


def watch_hdf5(module: ModuleType) -> None:
    """Patch h5py._hl.files: `h5py.File`."""
    from tfcluster_workers.hooks.replacing import replaces

    @replaces(vars(module)["File"], "__init__")
    def construct(
        stock: Function, self: Any, name: Any, mode: str = "r", *args: Any, **kwargs: Any
    ) -> None:
        is_named = isinstance(name, (str, bytes, os.PathLike))  # else an open file
        if is_named and mode != "r" and kwargs.get("backing_store", True):
            note_saved(os.fsdecode(name))
        stock(self, name, mode, *args, **kwargs)


def watch_tensorflow_files(module: ModuleType) -> None:
    """Patch tensorflow.python.lib.io.file_io: `tf.io.gfile.GFile`."""
    from tfcluster_workers.hooks.replacing import replaces

    @replaces(vars(module)["FileIO"], "__init__")
    def construct(
        stock: Function, self: Any, name: Any, mode: str, *args: Any, **kwargs: Any
    ) -> None:
        stock(self, name, mode, *args, **kwargs)
        if "w" in mode:
            note_saved(os.fspath(name))


def watch_record_writers(module: ModuleType) -> None:
    """Patch tensorflow.python.lib.io.tf_record: `tf.io.TFRecordWriter`."""
    from tfcluster_workers.hooks.replacing import replaces

    @replaces(vars(module)["TFRecordWriter"], "__init__")
    def construct(stock: Function, self: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        note_saved(os.fspath(path))
        stock(self, path, *args, **kwargs)


def watch_write_file(module: ModuleType) -> None:
    """Patch tensorflow.python.ops.gen_io_ops: `tf.io.write_file`, under its public names, too."""
    from tfcluster_workers.hooks.replacing import replaces

    stock_op = vars(module)["write_file"]
    public = [m for name, m in list(sys.modules.items()) if name.startswith("tensorflow._api.")]
    for owner in (module, *(m for m in public if vars(m).get("write_file") is stock_op)):

        @replaces(owner, "write_file")
        def write_file(stock: Function, filename: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(filename, str):
                note_saved(filename)
            return stock(filename, *args, **kwargs)
