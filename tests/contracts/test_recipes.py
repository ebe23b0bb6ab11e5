"""The recipe "a spec field" of docs/architecture.md works, tried with an invented field."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTIONS = "launcher/tfcluster/spec/sections.py"
FIELD = """\
class Strategy(Section):
    warm_laps: int = documented(3, "Steps that are run before the first one counts.", 5)

"""
READ = """\
import sys
from tfcluster.errors import SpecError
from tfcluster.spec.load import load

try:
    print(load(sys.argv[1], sets=sys.argv[2:]).strategy.warm_laps)
except SpecError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the launcher and its generated files, with the field in its model."""
    copy = tmp_path_factory.mktemp("checkout")
    for folder in ("launcher", "tools", "docs"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    sections = copy / SECTIONS
    old = sections.read_text()
    assert old.count("class Strategy(Section):\n") == 1
    sections.write_text(old.replace("class Strategy(Section):\n", FIELD))
    python(copy, "-m", "tools.generated")
    return copy


def python(checkout: Path, *argv: str) -> str:
    env = {**os.environ, "PYTHONPATH": f"{checkout}/launcher{os.pathsep}{checkout}"}
    done = subprocess.run(
        [sys.executable, *argv], cwd=checkout, env=env, text=True, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_field_is_in_the_schema_and_on_the_page_of_the_spec(checkout: Path) -> None:
    schema = json.loads((checkout / "launcher/tfcluster/spec/spec-v1.schema.json").read_text())
    assert schema["$defs"]["Strategy"]["properties"]["warm_laps"]["default"] == 3
    assert "| `warm_laps` | integer | `3` | `5` |" in (checkout / "docs/spec.md").read_text()


def test_the_field_is_read_overridden_and_explained(checkout: Path) -> None:
    """The recipe changes only the model."""

    def read(strategy: dict[str, int], *overrides: str) -> str:
        job = {"job": {"command": ["true"]}, "cluster": {"worker": 1}}
        (checkout / "spec.json").write_text(json.dumps({**job, "strategy": strategy}))
        return python(checkout, "-c", READ, "spec.json", *overrides)

    assert read({"warm_laps": 7}) == "7\n"
    assert read({"warm_laps": 7}, "strategy.warm_laps=9") == "9\n"
    assert 'did you mean "warm_laps"?' in read({"warm_lap": 7})
