"""The list of files that a node is to make: looked through before anything of it is made."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


class BadTree(ValueError):
    """A name that would lead out of the folder, or bytes that are not what was announced."""


def check(files: Iterable[dict[str, Any]]) -> None:
    """Raises BadTree for a path or a link that leads out of the folder."""
    links = set()
    for file in files:
        path = file["path"]
        if not isinstance(path, str) or "\0" in path or {"", ".", ".."} & set(path.split("/")):
            raise BadTree(f"{path!r} is not a path below the folder")
        if "link" in file:
            links.add(path)
            if not _stays_inside(path, file["link"]):
                raise BadTree(f"{path!r} is a link that leads out of the folder")
        elif not _is_digest(file["sha512"]):
            raise BadTree(f"{file['sha512']!r} is not a SHA-512")
    for file in files:
        folder = os.path.dirname(file["path"])
        while folder:
            if folder in links:
                raise BadTree(f"{file['path']!r} lies behind a link")
            folder = os.path.dirname(folder)


def _stays_inside(path: str, target: object) -> bool:
    """A ``..`` after a name could lead out over another link: all of them must come first."""
    if not isinstance(target, str) or not target or target.startswith("/") or "\0" in target:
        return False
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = next((n for n, part in enumerate(parts) if part != ".."), len(parts))
    return ups <= path.count("/") and ".." not in parts[ups:]


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and len(text) == 128 and set(text) <= set("0123456789abcdef")
