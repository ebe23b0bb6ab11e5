"""A fixture of stand-ins for a scheduler's commands."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

Stub = Callable[[str, str], Path]


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Return a function that puts a shell script first on PATH under the name of a command."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    def put(name: str, script: str) -> Path:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
        return folder / name

    return put
