"""Finds the folder that Python puts on `sys.path` for a script, an archive or a folder it runs."""

from __future__ import annotations

import os


def folder_of(target: str) -> str:
    """Return the first entry of `sys.path` under CPython for `target`.

    A script gives its folder with links resolved; an archive or a folder gives itself.
    """
    if os.path.isdir(target) or is_archive(target):
        return target
    return os.path.dirname(os.path.realpath(target))


def is_archive(target: str) -> bool:
    return os.path.splitext(target)[1] in {".zip", ".pyz"} and os.path.isfile(target)
