"""Fixtures: the folder into which the chief saves, and that of a store."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def chief(tmp_path: Path) -> Path:
    folder = tmp_path / "chief"
    folder.mkdir()
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"
