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

HERE = os.path.dirname(os.path.abspath(__file__))
_PLUMBING = """
    boot.py chaos.py estimator_hook.py keras_watch.py reporting.py save_watch.py tensorflow_watch.py
    tuner_watch.py
"""
OUR_PLUMBING = frozenset(os.path.join(HERE, name) for name in _PLUMBING.split())


def report(error: BaseException) -> None:
    """Send `error` with its place and its traceback, our own frames left out."""
    users = without_our_frames(error.__traceback__)
    file, line = place(error, users)
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


def without_our_frames(start: TracebackType | None) -> TracebackType | None:
    """`start` without the frames of boot and of the wrappers around TensorFlow's functions."""
    kept = [tb for tb in _walk(start) if tb.tb_frame.f_code.co_filename not in OUR_PLUMBING]
    for earlier, later in zip(kept, kept[1:]):
        earlier.tb_next = later
    if kept:
        kept[-1].tb_next = None
    return kept[0] if kept else None


def _walk(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def place(error: BaseException, users: TracebackType | None) -> tuple[str | None, int | None]:
    """File and line of the last frame that is the user's: not installed, not the library's."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno
    frames = [(tb.tb_frame.f_code.co_filename, tb.tb_lineno) for tb in _walk(users)]
    converted = getattr(_autograph_of(error), "translated_stack", ())
    frames += [(frame.filename, frame.lineno) for frame in reversed(converted)]
    own = [frame for frame in frames if not _is_foreign(frame[0])]
    chosen = own or frames
    return chosen[-1] if chosen else (None, None)


def _is_foreign(file: str) -> bool:
    name = os.path.basename(file)
    if file.startswith("<") or name.startswith("__autograph_generated_file"):
        return True
    return file.startswith(tuple(_library_folders()))


def _library_folders() -> list[str]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = {sysconfig.get_path(name) for name in names}
    found |= {path for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
    return [folder + os.sep for folder in found if folder]
