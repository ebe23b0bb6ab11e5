"""Where Python looks for modules beside a script, an archive or a folder that it runs."""

from __future__ import annotations

import os


def folder_of(target: str) -> str:
    """What CPython puts first on `sys.path`: links resolved, archives and folders themselves."""
    if os.path.isdir(target) or is_archive(target):
        return target
    return os.path.dirname(os.path.realpath(target))


def is_archive(target: str) -> bool:
    return os.path.splitext(target)[1] in {".zip", ".pyz"} and os.path.isfile(target)
