"""Writes files so that long runs of zeros take no room on the disk: a hole reads the same."""

from __future__ import annotations

import os

_BLOCK = 64 << 10
_ZEROS = bytes(_BLOCK)


def write_at(fd: int, data: bytes, at: int) -> None:
    """Write `data` at offset `at`, where nothing was written before, and leave out its blocks of
    zeros. The file ends behind `data` then, also where that ends with zeros. Raises OSError.
    """
    start, end = 0, len(data)
    while start < end:
        stop = start
        while stop < end and not _is_zero(data, stop):
            stop += _BLOCK
        view = memoryview(data)[start : min(stop, end)]
        while view:
            written = os.pwrite(fd, view, at + start)
            view, start = view[written:], start + written
        while start < end and _is_zero(data, start):
            start += _BLOCK
    if end and _is_zero(data, (end - 1) // _BLOCK * _BLOCK):
        os.ftruncate(fd, at + end)


def _is_zero(data: bytes, start: int) -> bool:
    if data[start]:
        return False
    block = data[start : start + _BLOCK]
    return block == _ZEROS[: len(block)]
