"""The tree itself: nothing in it names the machine it was written on, every test room is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The checkout's own place, a home folder of root, a package registry.
MACHINE = re.compile(
    rf"{re.escape(str(ROOT))}(?![\w-])|(?<![\w.$}}])/root/[.\w]|(?:extra-)?index-url"
)


def tracked() -> list[Path]:
    done = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True)
    if done.returncode:
        pytest.fail("the tests of the tree need git and a clone")
    return [ROOT / name for name in done.stdout.decode().split("\0") if name]


def test_no_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    own = Path(__file__)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in tracked()
        if path.is_file() and path != own and path.suffix != ".svg"
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if MACHINE.search(line)
    ]

    assert found == []


@pytest.mark.parametrize("line", [f"cd {ROOT}", f"{ROOT}/x", "/root/.pyenv/bin", "--index-url x"])
def test_the_pattern_does_find_such_a_path(line: str) -> None:
    assert MACHINE.search(line)


def test_nothing_generated_is_committed() -> None:
    names = {part for path in tracked() for part in path.relative_to(ROOT).parts}

    assert names.isdisjoint({"__pycache__", ".venv", "dist", ".mypy_cache", ".ruff_cache"})


READS_ITS_OWN_JSON = {
    *("agent/bootstrap.py", "agent/main.py", "agent/outside.py"),  # what their starter wrote
    *("agent/probe.py", "agent/dial.py"),
    "run/chaos.py",
    *("spec/templates.py", "spec/published.py"),  # files of the package
}


def test_what_others_wrote_as_json_is_read_in_one_place() -> None:
    """`json.loads` alone raises RecursionError, which no reader of a damaged file expects."""
    launcher = ROOT / "launcher" / "tfcluster"
    found = {
        str(path.relative_to(launcher))
        for path in launcher.rglob("*.py")
        if re.search(r"\bjson\.loads?\(", path.read_text())
    }
    assert found - {"agent/foreign_json.py"} == READS_ITS_OWN_JSON
