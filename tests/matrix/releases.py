"""The Keras releases of constraints/keras-releases.txt and the environments they are in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_LIST: Final = ROOT / "constraints/keras-releases.txt"


def releases() -> list[str]:
    """Return the releases, oldest first."""
    lines = _LIST.read_text().replace("\\\n", "").splitlines()
    listed = [line.split() for line in lines if line and not line.startswith("#")]
    return [requirement.partition("==")[2] for _, requirement, *_hashes in listed]


NEXT: Final = [path] if (path := os.environ.get("TFCLUSTER_TEST_PYTHON_NEWEST")) else []
"""The Python with a Keras that is not released yet, where `make test-next` tests one."""


def python_of(release: str) -> Path:
    """Return the Python of a release's environment, which `make test-matrix` makes."""
    return ROOT / (release if release in NEXT else f".venv-keras/{release}/bin/python")
