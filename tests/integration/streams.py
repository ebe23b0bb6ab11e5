"""A job that writes many lines, and a parser for the merged stream."""

from __future__ import annotations

WRITER = """
import os, sys
task, lines = os.environ.get("TFCLUSTER_TASK", "-"), int(sys.argv[1])
for first in range(0, lines, 100):
    block = b"".join(b"%-9s %08d %s\\n" % (task.encode(), n, b"." * 66)
                     for n in range(first, min(lines, first + 100)))
    while block:
        block = block[os.write(1, block):]
"""
"""A job that writes as many lines of 85 characters as its argument says, as fast as it can."""


def expected_log(task: str, lines: int) -> bytes:
    """Return what `WRITER` writes for one task."""
    return b"".join(b"%-9s %08d %s\n" % (task.encode(), n, b"." * 66) for n in range(lines))


def split_by_task(merged: bytes) -> dict[str, bytes]:
    """Split the merged stream by its prefixes into the output of each task."""
    found: dict[str, list[bytes]] = {}
    for row in merged.split(b"\n")[:-1]:
        label, bar, text = row.partition(" │ ".encode())
        assert bar, f"a line without a prefix: {row[:200]!r}"
        found.setdefault(label.decode().strip(), []).append(text + b"\n")
    return {task: b"".join(rows) for task, rows in found.items()}
