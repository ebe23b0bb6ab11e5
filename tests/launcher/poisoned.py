"""Foreign bytecode beside intact sources, as an attacker or a damaged disk leaves it."""

from __future__ import annotations

import importlib.util
import marshal
from pathlib import Path


def poison(source: Path, code: str) -> None:
    """Make this Python run `code` instead of `source` (the file format is that of PEP 552)."""
    found = source.stat()
    header = importlib.util.MAGIC_NUMBER + (0).to_bytes(4, "little")
    header += int(found.st_mtime).to_bytes(4, "little") + found.st_size.to_bytes(4, "little")
    cached = Path(importlib.util.cache_from_source(str(source)))
    cached.parent.mkdir(exist_ok=True)
    cached.write_bytes(header + marshal.dumps(compile(code, str(source), "exec")))
