"""A separate command line for every test, which fails the test that leaves something behind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forked import ForkServer

from .commandline import CommandLine


@pytest.fixture
def shell(fork_server: ForkServer) -> Iterator[CommandLine]:
    """A command line in a new folder; fails the test that leaves a process or a socket."""
    root = Path(tempfile.mkdtemp(prefix="tfc-", dir="/tmp"))
    line = CommandLine(root, fork_server)
    try:
        yield line
    finally:
        try:
            line.clean_up()
            left = [p for p in (root / "run").rglob("*") if not p.is_dir()]
        finally:
            shutil.rmtree(root, ignore_errors=True)
    assert not left, f"files left in the runtime folder: {left}"
