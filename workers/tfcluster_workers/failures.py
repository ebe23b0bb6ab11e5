"""Reports an uncaught exception as an `error` event that points to the user's own code."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from types import ModuleType, TracebackType
from typing import Any

from tfcluster_workers import reporting
from tfcluster_workers.errors import ClusterChangedError, JobError

PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
BOOT = os.path.join(PACKAGE, "boot.py")
JOBS = os.path.join(PACKAGE, "jobs") + os.sep
"""The folder of the example jobs; they count as the user's code."""
_KERAS_FILTER = os.path.join("src", "utils", "traceback_utils.py")


def report(error: BaseException) -> None:
    """Report `error` with its place and its traceback, without tfcluster's own frames.

    A `SystemExit` with a message is not reported after another error has been reported.
    """
    if isinstance(error, SystemExit) and reporting.has_reported_error():
        return
    reporting.finished()  # the last step comes before the error that ended it
    user_traceback = without_own_frames(error)
    facts, kind = facts_of(error), type(error)
    lines = traceback.format_exception(kind, error.with_traceback(user_traceback), user_traceback)
    cause = cause_of(error)
    reporting.error(**facts, traceback="".join(lines), child_code=_child_code(error), cause=cause)


def facts_of(error: BaseException) -> dict[str, Any]:
    """Return name, message and place of `error`, which stays as it is."""
    file, line = place(error)
    kind = type(error)
    module = "" if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}."
    name = f"{module}{kind.__qualname__}"
    return {"exception": name, "message": message_of(error), "file": file, "line": line}


def cause_of(error: BaseException) -> str:
    """Return the launcher's name of the cause, which AutoGraph's wrapper of an error hides."""
    if isinstance(error, ImportError) and _is_only_a_folder(_package_of(error)):
        return "only-a-folder"
    found: BaseException | None = error
    while found is not None and not isinstance(found, JobError):
        found = found.__cause__ or found.__context__
    return "" if found is None else found.cause


def _child_code(error: BaseException) -> int | None:
    """Return the exit code of the child that the script calls, if `error` says that it failed."""
    if type(error).__name__ != "CalledProcessError":
        return None
    return getattr(error, "returncode", None)


def report_safely(error: BaseException) -> None:
    """Report `error`; a failure to do so must not hide the user's error."""
    try:
        report(error)
    except Exception as failure:
        sys.stderr.write(f"tfcluster could not report the error below: {failure!r}\n")


def hide_own_frames() -> None:
    """Have the uncaught exception printed as a bare interpreter prints it."""
    hook = sys.excepthook

    def print_without_own_frames(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        user_traceback = without_own_frames(error.with_traceback(traceback))
        hook(kind, error.with_traceback(user_traceback), user_traceback)

    sys.excepthook = print_without_own_frames


def watch_uncaught() -> None:
    """Report an exception that nothing catches from now on, in a process that boot did not start.

    A script that replaces `sys.excepthook` replaces this.
    """
    hide_own_frames()
    hook = sys.excepthook

    def report_and_print(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):  # not Ctrl-C
            report_safely(error.with_traceback(traceback))
        hook(kind, error, traceback)

    sys.excepthook = report_and_print


def message_of(error: BaseException) -> str:
    """Return the message of `error`, without the stack that AutoGraph puts before it.

    Where a package lacks what is imported from it, the message says which package was found.
    """
    try:
        cause = getattr(_autograph_of(error), "cause_message", None)
        message = cause.removeprefix(f"{type(error).__name__}: ") if cause else str(error)
        return message + (_found_package(error) if isinstance(error, ImportError) else "")
    except Exception:
        return "(its message cannot be shown)"


def _package_of(error: ImportError) -> ModuleType | None:
    return sys.modules.get((error.name or "").partition(".")[0])


def _is_only_a_folder(package: ModuleType | None) -> bool:
    return getattr(package, "__file__", None) is None and hasattr(package, "__path__")


def _found_package(error: ImportError) -> str:
    """Return the version of the package that was found, or its place if it is only a folder."""
    package = _package_of(error)
    if package is None:
        return ""
    name = package.__name__
    if _is_only_a_folder(package):
        return f" ({name} is only the folder {next(iter(package.__path__), '?')})"
    from importlib import metadata

    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:  # the distribution may have another name
        version = getattr(package, "__version__", "")
    return f" ({name} {version})" if version else ""


def _autograph_of(error: BaseException) -> Any:
    """Return AutoGraph's metadata of an error in code it has rewritten (pyct/error_utils.py)."""
    return getattr(error, "ag_error_metadata", None)


def without_own_frames(error: BaseException) -> TracebackType | None:
    """Return the traceback of `error` without the frames of boot and of tfcluster's hooks.

    If tfcluster's own code has failed, only boot's frames are removed: a bug report needs the rest.
    """
    frames = list(_walk(error.__traceback__))
    is_hidden = BOOT.__eq__ if _is_internal_error(error, frames) else _is_own_file
    kept = [tb for tb in frames if not is_hidden(_file(tb))]
    for earlier, later in zip(kept, kept[1:]):
        earlier.tb_next = later
    if kept:
        kept[-1].tb_next = None
    return kept[0] if kept else None


def _is_internal_error(error: BaseException, frames: list[TracebackType]) -> bool:
    """Return whether `error` is a bug in tfcluster's own code.

    A traceback that Keras has filtered may end in a hook although Keras raised the error: keras and
    tf_keras remove their own frames (src/utils/traceback_utils.py).
    """
    if not frames or not _is_own_file(_file(frames[-1])):
        return False
    is_deliberate = type(error).__module__.startswith("tfcluster_workers.")
    return not is_deliberate and not any(_file(tb).endswith(_KERAS_FILTER) for tb in frames)


def _file(tb: TracebackType) -> str:
    return tb.tb_frame.f_code.co_filename


def _walk(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def place(error: BaseException) -> tuple[str | None, int | None]:
    """Return file and line of the last frame in user code: not installed, not of this package."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno
    if isinstance(error, ClusterChangedError) and error.place is not None:
        return error.place
    frames = [(_file(tb), tb.tb_lineno) for tb in _walk(error.__traceback__)]
    converted = getattr(_autograph_of(error), "translated_stack", ())
    frames += [(frame.filename, frame.lineno) for frame in reversed(converted)]
    candidates = [frame for frame in frames if not is_foreign(frame[0])] or frames
    return candidates[-1] if candidates else (None, None)


def is_foreign(file: str) -> bool:
    """Return whether `file` is installed, generated by TensorFlow, or part of this package."""
    name = os.path.basename(file)
    if file.startswith("<") or name.startswith("__autograph_generated_file") or _is_own_file(file):
        return True
    if name.endswith(".pyx") and not os.path.isabs(file):
        return True  # a Cython frame has the path it was built from: h5py/h5f.pyx
    return file.startswith(tuple(_library_folders()))


def _is_own_file(file: str) -> bool:
    """Return whether `file` is part of this package, but not the task's own program (a job)."""
    if not file.startswith(PACKAGE) or file.startswith(JOBS):
        return False
    return file == BOOT or file != getattr(sys.modules.get("__main__"), "__file__", None)


def _library_folders() -> list[str]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {sysconfig.get_path(name) for name in names}
    folders |= {path for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
    return [folder + os.sep for folder in folders if folder]
