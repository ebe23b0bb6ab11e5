"""Turns an uncaught exception into the `error` event, seen from the user's own code."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from tfcluster_workers import reporting
from tfcluster_workers.errors import ClusterChangedError

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
BOOT = os.path.join(HERE, "boot.py")
JOBS = os.path.join(HERE, "jobs") + os.sep
"""The example jobs stand for a user's script: their lines are shown."""
_KERAS_FILTER = os.path.join("src", "utils", "traceback_utils.py")


def report(error: BaseException) -> None:
    """Send `error` with its place and its traceback, our own frames left out.

    Whoever has reported a failure may exit with a text: that is not reported again.
    """
    if isinstance(error, SystemExit) and reporting.has_reported_error():
        return
    users = without_our_frames(error)
    file, line = place(error)
    kind = type(error)
    module = "" if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}."
    lines = traceback.format_exception(kind, error.with_traceback(users), users)
    reporting.error(
        exception=f"{module}{kind.__qualname__}",
        message=message_of(error),
        file=file,
        line=line,
        traceback="".join(lines),
    )


def message_of(error: BaseException) -> str:
    """What it says; inside a `tf.function` without the stack that AutoGraph writes before it."""
    try:
        cause = getattr(_autograph_of(error), "cause_message", None)
        return cause.removeprefix(f"{type(error).__name__}: ") if cause else str(error)
    except Exception:
        return "(its text cannot be shown)"


def _autograph_of(error: BaseException) -> Any:
    """What AutoGraph knows of an error in code that it has rewritten (pyct/error_utils.py)."""
    return getattr(error, "ag_error_metadata", None)


def without_our_frames(error: BaseException) -> TracebackType | None:
    """The traceback of `error` without the frames of boot and of what wraps Keras and TensorFlow.

    Where our own code has failed, all but boot's stay: a report of that fault needs them.
    """
    frames = list(_walk(error.__traceback__))
    is_hidden = BOOT.__eq__ if _is_our_fault(error, frames) else _is_ours
    kept = [tb for tb in frames if not is_hidden(_file(tb))]
    for earlier, later in zip(kept, kept[1:]):
        earlier.tb_next = later
    if kept:
        kept[-1].tb_next = None
    return kept[0] if kept else None


def _is_our_fault(error: BaseException, frames: list[TracebackType]) -> bool:
    """Whether our code raised `error` without meaning to.

    A traceback that Keras has filtered ends in our code when Keras raised it below: keras and
    tf_keras src/utils/traceback_utils.py take their own frames out.
    """
    if not frames or not _is_ours(_file(frames[-1])):
        return False
    is_meant = type(error).__module__.startswith("tfcluster_workers.")
    return not is_meant and not any(_file(tb).endswith(_KERAS_FILTER) for tb in frames)


def _file(tb: TracebackType) -> str:
    return tb.tb_frame.f_code.co_filename


def _walk(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def place(error: BaseException) -> tuple[str | None, int | None]:
    """File and line of the last frame that is the user's: neither installed nor of this package."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno
    if isinstance(error, ClusterChangedError) and error.place is not None:
        return error.place
    frames = [(_file(tb), tb.tb_lineno) for tb in _walk(error.__traceback__)]
    converted = getattr(_autograph_of(error), "translated_stack", ())
    frames += [(frame.filename, frame.lineno) for frame in reversed(converted)]
    own = [frame for frame in frames if not is_foreign(frame[0])]
    chosen = own or frames
    return chosen[-1] if chosen else (None, None)


def is_foreign(file: str) -> bool:
    """Whether `file` is installed, made by TensorFlow, or of this package."""
    name = os.path.basename(file)
    if file.startswith("<") or name.startswith("__autograph_generated_file") or _is_ours(file):
        return True
    if name.endswith(".pyx") and not os.path.isabs(file):
        return True  # a frame of Cython has the path it was built from: h5py/h5f.pyx
    return file.startswith(tuple(_library_folders()))


def _is_ours(file: str) -> bool:
    """Whether `file` is of this package, unless it is what the task runs: a job, `-m …server`."""
    if not file.startswith(HERE) or file.startswith(JOBS):
        return False
    return file == BOOT or file != getattr(sys.modules.get("__main__"), "__file__", None)


def _library_folders() -> list[str]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = {sysconfig.get_path(name) for name in names}
    found |= {path for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
    return [folder + os.sep for folder in found if folder]
