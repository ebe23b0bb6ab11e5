"""Reports what would make it doubtful that this task did its work, should it end with exit code 0.

A script may catch what ends `fit`, and train in a thread; Python ignores what a function of
`atexit` raises. The launcher warns of it if the task does end with 0 (supervision.doubts).
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

from tfcluster_workers import failures, last_step, reporting

_IN_ATEXIT = "Exception ignored in atexit callback"
"""The begin of the message of such an exception, since Python 3.10."""
_lock = threading.Lock()
_fits = 0
"""The calls of `fit` that have not returned, in all threads."""
_has_data = False
"""True once a dataset has had an element, or a training has had a batch."""


@functools.cache
def watch() -> None:
    """Report what ends a thread that trains, and what a function of `atexit` raises.

    A script that replaces `threading.excepthook` or `sys.unraisablehook` replaces this.
    """
    end_thread, ignore = threading.excepthook, sys.unraisablehook

    def note_end(args: Any) -> None:
        if getattr(reporting.thread, "trains", False) and isinstance(args.exc_value, Exception):
            _report("thread", args.exc_value)
        end_thread(args)

    def note_ignored(args: Any) -> None:
        if str(args.err_msg).startswith(_IN_ATEXIT) and _is_of_script(args.exc_value):
            _report("exit", args.exc_value)
        ignore(args)

    threading.excepthook, sys.unraisablehook = note_end, note_ignored


def _is_of_script(error: BaseException | None) -> bool:
    file, _line = (None, None) if error is None else failures.place(error)
    return file is not None and not failures.is_foreign(file)


def _report(about: str, error: BaseException) -> None:
    """Report an exception that is passed on unchanged; a failure to do so must not hide it."""
    try:
        reporting.finished()  # the last step comes before what ended the training
        facts = failures.facts_of(error)
        if facts["file"] is None or failures.is_foreign(facts["file"]):
            facts["file"], facts["line"] = _calling_line()  # it has not been passed on to there yet
        reporting.doubt(about, **facts)
    except Exception as failure:
        reporting.note(f"tfcluster could not report {type(error).__name__}: {failure!r}")


def _calling_line() -> tuple[str | None, int | None]:
    """Return file and line of the innermost function of the script that is being called."""
    frame = sys._getframe()
    while frame is not None and failures.is_foreign(frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    return (None, None) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


# -- fit ------------------------------------------------------------------------------------


def is_in_fit() -> bool:
    """Return whether a call of Keras's `fit` has not returned."""
    return _fits > 0


def fit_begins() -> None:
    """Note that `fit` is called."""
    watch()
    _count_fits(1)


def fit_ends(error: BaseException | None) -> None:
    """Note that a call of `fit` has ended, with `error` if it did not return.

    Of nested calls the outermost counts. Ctrl-C is no reason to doubt.
    """
    if _count_fits(-1):
        return
    if error is None:
        reporting.doubt_over("fit")
    elif isinstance(error, (Exception, SystemExit)):
        _report("fit", error)
        reporting.thread.trains = False  # should it end this thread, too, that says no more


def _count_fits(change: int) -> int:
    global _fits
    with _lock:
        _fits += change
        last_step.note_fits(_fits)
        return _fits


# -- data -----------------------------------------------------------------------------------


def note_data() -> None:
    """Note that there are data. Cheap enough for every batch."""
    global _has_data
    if not _has_data:
        _has_data = True
        watch()
        reporting.doubt_over("data")


def note_no_data() -> None:
    """Report that a dataset, or a training, has ended without an element, unless others had any."""
    if not _has_data:
        reporting.doubt("data")
