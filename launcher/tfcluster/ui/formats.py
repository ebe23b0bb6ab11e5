"""Numbers and text as people read them: durations, sizes, signals, rates, cut and wrapped text."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable
from typing import Final

from rich.cells import cell_len, set_cell_size

from tfcluster.errors import signal_name

_KEPT_SPACE: Final = "\ufdd0"
"""Stands for a space that is no place for a line break: a code point that is never a character."""
_COMMAND: Final = re.compile(r"`[^`\n]+`|--set \S+")


def format_duration(seconds: float) -> str:
    """Return ``0.8 s``, ``12 s``, ``3 min 05 s``, ``2 h 07 min`` or ``3 d 4 h``."""
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


def format_ms(seconds: float) -> str:
    """Return ``3.42 ms``, ``182 ms``, ``1.25 s``, or ``12 s`` from ten seconds on."""
    if seconds >= 9.95:
        return format_duration(seconds)
    ms = seconds * 1000
    if ms >= 999.5:
        return f"{seconds:.2f} s"
    return f"{ms:.0f} ms" if ms >= 99.95 else f"{ms:.3g} ms"


def format_bytes(count: float) -> str:
    """Return ``512 B``, ``1.5 MB``, ``12 GB``: powers of ten, like disk vendors and ``ls --si``."""
    if not math.isfinite(count):
        return format_value(count)
    unit = "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if count < 999.5:
            break
        count, unit = count / 1000, larger
    return f"{count:.1f} {unit}" if count < 9.95 and unit != "B" else f"{count:.0f} {unit}"


def format_bits(per_second: float) -> str:
    """Return ``100 Mbit/s``, ``2.5 Gbit/s``: the rate of a network, in powers of ten."""
    unit = "bit"
    for larger in ("kbit", "Mbit", "Gbit", "Tbit"):
        if per_second < 999.5:
            break
        per_second, unit = per_second / 1000, larger
    return f"{per_second:.3g} {unit}/s"


def format_rate(per_second: float | None) -> str:
    """Return ``41.2``, or an empty string if the rate is not known."""
    if per_second is None:
        return ""
    return f"{per_second:.2f}" if per_second < 9.995 else f"{per_second:.1f}"


def format_large_rate(per_second: float) -> str:
    """Return ``41.2`` or ``1,312``: a rate that may be large."""
    return f"{per_second:,.0f}" if per_second >= 999.5 else format_rate(per_second)


def format_value(value: float) -> str:
    """Return a metric as a person reads it: ``0.0312``, ``12.5k``, ``NaN``."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if limit <= abs(value) < 1e12:
            return f"{value / (1e3 if letter == 'k' else limit):.4g}{letter}"
    return f"{value:.4g}"


def format_exit(exit_code: int | None, signal_number: int | None) -> str:
    """Return ``exit 3`` or ``SIGKILL``, or an empty string for a task that has not ended."""
    if signal_number is not None:
        return signal_name(signal_number)
    return "" if exit_code is None else f"exit {exit_code}"


def format_known(value: float | None, form: Callable[[float], str]) -> str:
    """Return `value` in a form, or an empty string if it is not known."""
    return "" if value is None else form(value)


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def cut_to_columns(text: str, columns: int) -> str:
    """Return `text` in at most `columns` cells of a screen, with … where it was cut off."""
    if cell_len(text) <= columns:
        return text
    return f"{set_cell_size(text, columns - 1)}…" if columns > 0 else ""


def cut_middle(text: str, columns: int) -> str:
    """Return `text` in at most `columns` characters, with … where its middle was cut out."""
    if len(text) <= columns:
        return text
    head = max(columns - 1, 0) // 2
    return f"{text[:head]}…{text[len(text) - (columns - 1 - head) :]}" if columns > 0 else ""


def keep_whole(text: str) -> str:
    """Return `text`, a path or a command, such that `wrap_words` does not break it at a space."""
    return text.replace(" ", _KEPT_SPACE)


def wrap_words(text: str, width: int, *, indent: str = "") -> list[str]:
    """Return the lines of `text` in at most `width` columns, continued after `indent`.

    Users copy paths and commands. So words are never broken, not even at a hyphen, and there is no
    break inside of backticks, of ``--set a.b=c`` and of what is from `keep_whole`: what is too long
    goes beyond the width, for the terminal to wrap.
    """
    wrapper = textwrap.TextWrapper(
        max(width, 8), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    text = _COMMAND.sub(lambda command: keep_whole(command[0]), text)
    rows = (row for line in text.split("\n") for row in wrapper.wrap(line) or [""])
    return [row.replace(_KEPT_SPACE, " ") for row in rows]
