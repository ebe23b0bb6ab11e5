"""The end of a task's log, where its last words are."""

from __future__ import annotations

from pathlib import Path

_BYTES = 64 * 1024


def last_text(log: Path) -> str:
    """The last 64 KiB of a log; empty when there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _BYTES))
            return file.read(_BYTES).decode(errors="replace")
    except OSError:
        return ""
