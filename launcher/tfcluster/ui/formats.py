"""Numbers as people read them: durations, sizes, signals, rates."""

from __future__ import annotations

import signal
import textwrap
import unicodedata


def format_duration(seconds: float) -> str:
    """``0.8 s``, ``12 s``, ``3 min 05 s``, ``2 h 07 min``, ``3 d 4 h``."""
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def format_bytes(count: float) -> str:
    """``512 B``, ``1.5 MB``, ``12 GB``; powers of ten, as disks are sold and ``ls -h --si``."""
    unit = "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if count < 999.5:
            break
        count, unit = count / 1000, larger
    return f"{count:.1f} {unit}" if count < 9.95 and unit != "B" else f"{count:.0f} {unit}"


def format_rate(per_second: float | None) -> str:
    """``41.2``; an empty text where it is not known."""
    if per_second is None:
        return ""
    return f"{per_second:.2f}" if per_second < 9.995 else f"{per_second:.1f}"


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; the bare number where this system has no such signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def format_exit(exit_code: int | None, signal_number: int | None) -> str:
    """``exit 3``, ``SIGKILL``; an empty text while it has not ended."""
    if signal_number is not None:
        return signal_name(signal_number)
    return "" if exit_code is None else f"exit {exit_code}"


def plural(count: int, noun: str, nouns: str = "") -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {nouns or noun + 's'}"


def cut_to_columns(text: str, columns: int) -> str:
    """`text` in at most `columns` cells of a screen, with … where something was cut off."""
    used = 0
    for index, sign in enumerate(text):
        used += _cells(sign)
        if used > columns:
            kept = text[:index]
            while kept and _columns(kept) >= columns:
                kept = kept[:-1]
            return kept + "…" if columns > 0 else ""
    return text


def _columns(text: str) -> int:
    return sum(map(_cells, text))


def _cells(sign: str) -> int:
    # UAX 11: wide and fullwidth signs take two cells, combining ones none.
    if unicodedata.combining(sign):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def wrap_words(text: str, width: int, *, indent: str = "") -> list[str]:
    """`text` in lines of at most `width` columns, all but the first behind `indent`.

    Paths and commands are copied by hand: never broken, not even at a hyphen.
    """
    return textwrap.wrap(
        text,
        max(width, 8),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
