"""Private folders for sockets, locks and code, which no other user may enter, even in /tmp."""

from __future__ import annotations

import errno
import os
import stat


def make_folders(folder: str) -> None:
    """Create `folder` and its missing parents for this user alone (0700)."""
    missing = []
    while folder and not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for path in reversed(missing):
        os.makedirs(path, mode=0o700, exist_ok=True)


class UnsafeFolderError(OSError):
    """Other users can use a folder that must be private."""


def make_private(folder: str) -> None:
    """Create `folder` (0700) unless it exists.

    Raises OSError, and UnsafeFolderError when other users can use it: a name in /tmp can be
    guessed, and another user who creates it first could put a socket there and read what is sent to
    the agent.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if fault := _find_fault(os.lstat(folder)):
        raise UnsafeFolderError(errno.EPERM, fault, folder)


def _find_fault(status: os.stat_result) -> str:
    if not stat.S_ISDIR(status.st_mode):
        return "not a folder but a link"
    if status.st_uid != os.getuid():
        return "it belongs to another user"
    return "other users can write to it" if status.st_mode & 0o022 else ""


def place_of(base: str) -> str:
    """Return `base`, or `base` with a suffix if another user has taken that name.

    All processes of the user on this machine get the same answer: the suffix is stored in the
    user's cache, per machine because homes may be shared. A new one is chosen only if its folder is
    taken too. No folder is created; if no suffix can be stored, `make_private` of the returned path
    raises the error that says why.
    """
    name = f"sockets-{os.uname().nodename}-{base.strip('/').replace('/', '-')}"
    record = os.path.expanduser(os.path.join("~", ".cache", "tfcluster", name))
    place = _with_suffix(base, _read(record))
    if not _is_taken(place):
        return place
    try:
        make_folders(os.path.dirname(record))
        fd = os.open(record, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return place
    import fcntl

    with open(fd, "r+", errors="replace") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        place = _with_suffix(base, file.read())  # another process may have been faster
        while _is_taken(place):
            suffix = os.urandom(4).hex()
            place = _with_suffix(base, suffix)
            file.seek(0)
            file.truncate()
            file.write(suffix)
            file.flush()
        return place


def _with_suffix(base: str, suffix: str) -> str:
    is_valid = len(suffix) == 8 and set(suffix) <= set("0123456789abcdef")
    return f"{base}-{suffix}" if is_valid else base


def _is_taken(folder: str) -> bool:
    try:
        return _find_fault(os.lstat(folder)) != ""
    except OSError:
        return False


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except (OSError, ValueError):
        return ""
