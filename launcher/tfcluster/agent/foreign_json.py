"""Files and JSON from outside this process, read so that no defect hangs or crashes the reader.

A path may name a pipe or a device that never ends, and `json.loads` raises RecursionError for
deeply nested text: here any defect is a ValueError. All JSON from a run folder, a host, a daemon, a
task or a cache is read here.
"""

from __future__ import annotations

import io
import json
import os
import stat

from tfcluster.agent import Any

LARGEST_FILE = 256 << 20
"""The largest file that is read, in bytes: ten times the state of ten thousand tasks."""


def open_regular(path: str | os.PathLike[str]) -> io.FileIO:
    """Open a file for reading, unbuffered. Raises OSError, also for anything but a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would block
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("it is not a regular file")
    return io.FileIO(descriptor)


def parse_json(text: str | bytes | bytearray) -> Any:
    """Return the value of a JSON text. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_json_object(text: str | bytes | bytearray) -> dict[str, Any]:
    """Return the object in a JSON text. Raises ValueError for anything else."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def read_json_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the JSON object in a file. Raises OSError, and ValueError for anything else."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_FILE:
            raise ValueError(f"it has {size:,} bytes, more than {LARGEST_FILE:,}")
        return parse_json_object(file.read())
