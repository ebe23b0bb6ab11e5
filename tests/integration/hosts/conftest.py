"""Real hosts for the tests of this folder: three machines with sshd, and one to start runs from."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lab.machines import Lab

from .office import Office


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Machines on a network of their own, made once for each test process."""
    missing = [tool for tool in ("sshd", "ssh", "ip", "unshare") if not _has(tool)]
    if missing or os.getuid() != 0:
        pytest.skip(f"needs root and {', '.join(missing) or 'nothing else'}: see .ci/packages")
    with Lab(Path(tempfile.mkdtemp(prefix="lab-", dir="/var/tmp"))) as made:
        made.add("home", number=254)
        yield made


def _has(tool: str) -> bool:
    return shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is not None


@pytest.fixture
def office(lab: Lab) -> Iterator[Office]:
    """A desk where commands are typed, and new hosts to run on."""
    made = Office(lab)
    try:
        yield made
    finally:
        made.close()
    assert not made.left, f"left behind: {made.left}"
