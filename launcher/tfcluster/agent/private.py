"""Folders of sockets, locks and code, which no other user may enter: in a shared /tmp, too."""

from __future__ import annotations

import errno
import os
import stat


def make_folders(folder: str) -> None:
    """Make `folder` and what is missing above it, all of it for this user alone (0700)."""
    missing = []
    while folder and not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for path in reversed(missing):
        os.makedirs(path, mode=0o700, exist_ok=True)


def make_private(folder: str) -> None:
    """Make `folder` (0700) unless it is there.

    Raises OSError, also when it is not this user's alone: a name in /tmp can be guessed, and who
    makes it first could put a socket of his own in our place and read what we tell the agent.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "not a folder but a link", folder)
    if found.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "it belongs to another user", folder)
    if found.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "other users can write to it", folder)
