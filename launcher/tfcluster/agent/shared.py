"""Whether this node sees a folder of the coordinator's machine itself, as over NFS."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST = 256
"""Bytes of a mark."""


def look(order: dict[str, Any]) -> dict[str, Any]:
    """The first of `folders` in which the file `name` says `text`, has the number `inode`, and
    in which this user may write; null where there is none."""
    found = (os.path.expanduser(folder) for folder in order["folders"])
    seen = next((folder for folder in found if _is_it(folder, order)), None)
    return {"type": "looked", "id": order["id"], "folder": seen}


def _is_it(folder: str, order: dict[str, Any]) -> bool:
    path = os.path.join(folder, order["name"])
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        is_same = os.fstat(fd).st_ino == order["inode"]
        is_same = is_same and os.read(fd, _MOST) == order["text"].encode()
    except OSError:
        return False
    finally:
        os.close(fd)
    return is_same and os.access(folder, os.W_OK | os.X_OK)
