"""Texts for exceptions that are shown to a user; they are never empty.

``str(TimeoutError())``, ``str(CancelledError())`` and the text of an OSError raised without
arguments are empty: a message would end in ": ".
"""

from __future__ import annotations

_DEFAULT_TEXTS = {
    "TimeoutError": "no answer in time",
    "CancelledError": "cancelled",
    "BrokenPipeError": "the other end closed the connection",
    "ConnectionResetError": "the other end closed the connection",
    "EOFError": "unexpected end of the data",
    "MemoryError": "out of memory",
    "RecursionError": "nested too deeply",
}


def describe_error(error: BaseException) -> str:
    """Return the full text of an exception, with the number and the file of an OSError."""
    name = type(error).__name__
    return str(error).strip() or _DEFAULT_TEXTS.get(name, name)


def reason_of(error: BaseException) -> str:
    """Return the text of an exception, without the number and the file of an OSError."""
    strerror = getattr(error, "strerror", None)
    return strerror if isinstance(strerror, str) and strerror else describe_error(error)
