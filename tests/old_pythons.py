"""Pythons that are too old for tfcluster: real ones from pyenv, and one that pretends to be 3.7."""

from __future__ import annotations

import sys
from pathlib import Path

REAL = sorted(str(path) for path in Path.home().glob(".pyenv/versions/3.[678].*/bin/python"))
_PRETENDS = """#!/bin/sh
# For `python -I -S -c CODE ARGUMENTS`.
shift 3; code=$1; shift
exec {python} -I -S -c "import sys
sys.version_info, sys.version, sys.executable = (3, 7, 16), '3.7.16 (default)', '$0'
exec(sys.argv.pop(1))" "$code" "$@"
"""


def pretending(path: Path) -> str:
    """Make a Python at `path` that reports version 3.7; return its path."""
    path.write_text(_PRETENDS.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)
