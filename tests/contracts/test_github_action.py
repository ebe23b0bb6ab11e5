"""The GitHub Action annotates the lines of specs; action.yml passes it the inputs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GOOD = '{"cluster": {"worker": 2}, "job": {"command": ["true"]}}'
BAD = '{\n  "cluster": {"wroker": 2},\n  "job": {"command": ["true"]}\n}\n'


def run_action(folder: Path, command: str, specs: str) -> subprocess.CompletedProcess[str]:
    given = {"command": command, "specs": specs}
    (step,) = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    passed = {
        name: given[value.removeprefix("${{ inputs.").removesuffix(" }}")]
        for name, value in step["env"].items()
        if name != "PYTHON"
    }
    summary = str(folder / "summary")
    return subprocess.run(
        [sys.executable, ROOT / "tools/github_action.py"],
        cwd=folder / "specs",
        env=os.environ | passed | {"GITHUB_WORKSPACE": str(folder), "GITHUB_STEP_SUMMARY": summary},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs/good.json").write_text(GOOD)
    return tmp_path


def test_a_problem_is_an_annotation_on_its_line_with_the_fix(folder: Path) -> None:
    (folder / "specs/bad.json").write_text(BAD)

    done = run_action(folder, "validate", "*.json\n\ngone.json\n")

    assert done.returncode == 2
    first, good, gone = done.stdout.splitlines()
    assert first == (
        "::error file=specs/bad.json,line=2,col=15,title=tfcluster::"
        "unknown key 'wroker' in cluster%0A→ did you mean \"worker\"?"
    )
    assert good.endswith("good.json: OK; good, 2 tasks")
    assert gone.startswith("::error file=specs/gone.json,title=tfcluster::no such file%0A→ check")


def test_a_plan_is_in_the_summary_of_the_job(folder: Path) -> None:
    done = run_action(folder, "plan", "good.json")

    assert done.returncode == 0, done.stderr
    assert "::" not in done.stdout
    assert "worker:1" in (folder / "summary").read_text()


def test_another_command_is_refused(folder: Path) -> None:
    assert "not one of validate, plan" in run_action(folder, "up", "good.json").stderr
