"""Opens files that another program wrote: a path may name a pipe or a device that never ends."""

from __future__ import annotations

import io
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    Path = Union[str, os.PathLike[str]]


def open_regular(path: Path) -> io.FileIO:
    """Open a file for reading, unbuffered. Raises OSError, also for anything but a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would block
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("it is not a regular file")
    return io.FileIO(descriptor)
