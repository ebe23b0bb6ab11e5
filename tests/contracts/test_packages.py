"""Packages and modules keep a readable size: a package is a subject, a module an idea."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAUNCHER = ROOT / "launcher" / "tfcluster"
WORKERS = ROOT / "workers" / "tfcluster_workers"
ONE_FILE_PER_COMMAND = LAUNCHER / "cli"
MIRRORED = {"plan.py", "build.py", "doctor.py"}
"""Commands in `cli/` that are named like the module that does their work."""

ONE_LIST = {"catalogue.py", "events.py", "known_errors.py"}
"""Modules of declarations without logic, which are read as one list."""


def modules(package: Path) -> list[Path]:
    return [path for path in package.rglob("*.py") if path.name != "__init__.py"]


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_no_package_has_more_than_16_modules() -> None:
    found = Counter(path.parent for path in modules(LAUNCHER) + modules(WORKERS))
    assert {p for p, count in found.items() if count > 16} <= {ONE_FILE_PER_COMMAND}


def test_no_module_is_longer_than_400_lines() -> None:
    found = [path for path in modules(LAUNCHER) + modules(WORKERS) if lines(path) > 400]
    assert [path for path in found if path.name not in ONE_LIST] == []


def test_few_modules_of_the_launcher_are_short() -> None:
    """A module of under 80 lines mostly belongs into the module that imports it."""
    sizes = [lines(path) for path in modules(LAUNCHER) if path.parent != ONE_FILE_PER_COMMAND]
    assert sum(size < 80 for size in sizes) < 0.12 * len(sizes)


def test_no_two_modules_of_the_launcher_have_the_same_name() -> None:
    found = Counter(path.name for path in modules(LAUNCHER))
    assert {name for name, count in found.items() if count > 1} - {"base.py"} == MIRRORED
