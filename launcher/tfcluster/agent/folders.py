"""Folders of a node that go with all that is in them."""

from __future__ import annotations

import contextlib
import errno
import os
import time


def new_passing(cache: str) -> str:
    """A name for a folder where files wait that one process is to move into their places: homes
    may be shared, so its number would not do."""
    return os.path.join(cache, "passing", os.urandom(6).hex())


def remove_older(folder: str, seconds: float) -> None:
    """What is in `folder` and has not changed for so long: its owner was killed."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.stat(follow_symlinks=False).st_mtime < time.time() - seconds:
                remove(entry.path)


def remove(folder: str) -> None:
    """A folder and all below it, links themselves and never what they lead to."""
    if os.path.islink(folder):
        os.unlink(folder)
        return
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return
        raise
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            remove(entry.path)
        else:
            os.unlink(entry.path)
    os.rmdir(folder)
