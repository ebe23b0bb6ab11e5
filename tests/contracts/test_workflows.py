"""The commands of the workflows exist, and a release's notes are those of its version.

`make check` runs the static analyses of the workflows.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.contracts.test_console import check_line, simple_commands
from tools.release import notes
from tools.release.__main__ import STEPS

from tfcluster import __version__

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
RUNNER_PROGRAMS = {"apt-get", "gh", "git", "rm", "test"}
"""Programs of the runner or its container."""


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text())["jobs"].items():
            yield f"{path.stem}: {name}", job


def commands(job: dict[str, Any]) -> Iterator[str]:
    """Yield each line that a job runs, once for each lane of its matrix."""
    lanes = job.get("strategy", {}).get("matrix", {}).get("include", [{}])
    for line in (line for step in job["steps"] for line in step.get("run", "").splitlines()):
        yield from dict.fromkeys(line.replace('"$LANE"', lane.get("lane", "")) for lane in lanes)


def problem(line: str) -> str:
    """Return what a line names that does not exist, or an empty string."""
    for program, *words in simple_commands(line.partition(" > ")[0]):
        if program == "make" or program == ".venv/bin/tfcluster":
            steps = [word.removeprefix("STEPS=") for word in words if word.startswith("STEPS=")]
            if not set(" ".join(steps).split()) <= set(STEPS):
                return line
            try:
                check_line(shlex.join([Path(program).name, *(w for w in words if "=" not in w)]))
            except AssertionError:
                return line
        elif program.startswith(".venv/bin/") or program == "python3":
            script = next((word for word in words if word.endswith(".py")), ".ci/run")
            tool = ROOT / (program if program.startswith(".") else script)
            if not tool.is_file():
                return str(tool)
        elif program.startswith("."):
            if not os.access(ROOT / program, os.X_OK):
                return program
        elif program not in RUNNER_PROGRAMS:
            return program
    return ""


@pytest.mark.parametrize("name", JOBS := dict(jobs()))
def test_the_commands_of_a_job_exist(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert [found for line in commands(JOBS[name]) if (found := problem(line))] == []
    assert "timeout-minutes" in JOBS[name]


@pytest.mark.parametrize(
    "line",
    [
        "make gone",
        "make release-check STEPS='build gone'",
        ".ci/gone",
        "python3 tools/gone.py x > y",
        ".venv/bin/gone",
        "gone x",
    ],
)
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    assert problem(line)


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
        ("issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("dependabot", ".github/dependabot.yml"),
        ("actions", "action.yml"),
    ],
)
def test_the_host_can_read_a_file(schema: str, pattern: str) -> None:
    files = sorted(map(str, ROOT.glob(pattern)))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    done = subprocess.run(
        [*command, f"vendor.github-{schema}".replace("github-dep", "dep"), *files],
        capture_output=True,
        text=True,
    )
    assert files
    assert done.returncode == 0, done.stdout


def test_the_notes_of_a_release_are_its_section_of_the_changelog() -> None:
    changelog = (
        "# C\n\n## [Unreleased]\n\n- n\n\n## [1.10.0] - 2026-01-02\n\n- a\n\n## [1.1.0]\n- b\n"
    )
    assert notes.section(changelog, "1.10.0") == "- a"
    assert notes.section(changelog, "1.1.0") == "- b"
    assert notes.section(changelog, "2.0.0") == ""


def test_the_page_of_a_release_has_a_line_for_each_paragraph() -> None:
    text = "First\nline.\n\n### Added\n\n- `a`\n  more\n- *b*\n  - c\n    d"
    assert notes.unwrapped(text) == "First line.\n\n### Added\n\n- `a` more\n- *b*\n  - c d"


def test_a_tag_of_another_version_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "tools/release/notes.py", "v0.0.0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert f"v{__version__}" in done.stderr
