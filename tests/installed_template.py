"""The template for new backends, `tests/template_backend`, installed as a package of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent / "template_backend"


def install(folder: Path) -> Path:
    """Install the template into `folder`, for PYTHONPATH; return it. Needs no network."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    alone = ["--no-deps", "--no-index", "--no-build-isolation", "--target", str(folder)]
    subprocess.run([*pip, *alone, str(SOURCE)], check=True, timeout=200)
    return folder
