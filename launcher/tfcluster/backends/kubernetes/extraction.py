"""Unpacking tar files by the rules of PEP 706, also before Python 3.11.4, which brought them."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Literal


def extract(
    tar: tarfile.TarFile, folder: Path, rules: Literal["tar", "data"], *, below: str = ""
) -> None:
    """Unpack `tar`, or only the files whose names begin with `below`, into `folder`.

    By the rules `data`, for a file of somebody else, it may hold nothing that leads out of the
    folder: raises tarfile.TarError. By `tar`, it is trusted.
    """
    members = [member for member in tar.getmembers() if member.name.startswith(below)]
    if hasattr(tarfile, "data_filter"):
        tar.extractall(folder, members, filter=rules)
        return
    if rules == "data":
        for member in members:
            _check(member, os.path.realpath(folder))
    tar.extractall(folder, members)


def _check(member: tarfile.TarInfo, folder: str) -> None:
    """Raise tarfile.TarError unless `member` is a file or a folder below `folder`."""
    path = os.path.realpath(os.path.join(folder, member.name))
    if not (member.isreg() or member.isdir()) or os.path.commonpath([folder, path]) != folder:
        raise tarfile.ExtractError(f"{member.name!r} is neither a file nor a folder below {folder}")
