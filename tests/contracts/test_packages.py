"""A module's name is found by a search: no two modules of the launcher share one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

LAUNCHER = Path(__file__).parents[2] / "launcher" / "tfcluster"


def test_no_two_modules_of_the_launcher_have_the_same_name() -> None:
    modules = (path for path in LAUNCHER.rglob("*.py") if path.name != "__init__.py")
    counts = Counter(path.name for path in modules)
    assert {name for name, count in counts.items() if count > 1} <= {"base.py"}
