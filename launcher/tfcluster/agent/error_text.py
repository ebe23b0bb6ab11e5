"""Words for an exception that is shown to somebody: never none.

``str(TimeoutError())`` and ``str(CancelledError())`` are empty, and so is that of many an OSError
that was raised without words: a message that ends in ": " tells nobody anything.
"""

from __future__ import annotations

_WITHOUT_WORDS = {
    "TimeoutError": "no answer came in time",
    "CancelledError": "it was cut short",
    "BrokenPipeError": "the other end is gone",
    "ConnectionResetError": "the other end is gone",
    "EOFError": "it ended early",
    "MemoryError": "there is not enough memory",
    "RecursionError": "it is nested too deeply",
}


def describe_error(error: BaseException) -> str:
    """All that it says: with the number and the file of an OSError."""
    name = type(error).__name__
    return str(error).strip() or _WITHOUT_WORDS.get(name, name)


def reason_of(error: BaseException) -> str:
    """The same without the number and the file."""
    strerror = getattr(error, "strerror", None)
    return strerror if isinstance(strerror, str) and strerror else describe_error(error)
