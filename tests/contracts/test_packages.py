"""A module's name is found by a search: no two modules of the launcher share one."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

LAUNCHER = Path(__file__).parents[2] / "launcher" / "tfcluster"


def test_no_two_modules_of_the_launcher_have_the_same_name() -> None:
    modules = (path for path in LAUNCHER.rglob("*.py") if path.name != "__init__.py")
    counts = Counter(path.name for path in modules)
    assert {name for name, count in counts.items() if count > 1} <= {"base.py"}


def test_the_pages_about_the_code_name_modules_that_exist() -> None:
    root = LAUNCHER.parents[1]
    folders = ("launcher", "workers", "tests", "tools")
    files = {
        f"/{path.relative_to(root)}" for folder in folders for path in (root / folder).rglob("*.py")
    }
    for page in ("CONTRIBUTING.md", "docs/architecture.md", "docs/how-a-run-starts.md"):
        named = re.findall(r"`([\w/]+\.py)`", (root / page).read_text())
        assert [name for name in named if not any(file.endswith(f"/{name}") for file in files)] == [
            name for name in named if "NAME" in name
        ]
