"""Recipes of docs/architecture.md work, tried with an invented field and an invented message."""

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
from tfcluster.spec import PlanOptions
from tfcluster.spec.load import load

try:
    print(load(sys.argv[1], PlanOptions(tuple(sys.argv[2:]))).spec.strategy.warm_laps)
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
        [sys.executable, *argv], cwd=checkout, env=env, text=True, capture_output=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_field_is_in_the_schema_and_on_the_page_of_the_spec(checkout: Path) -> None:
    schema = json.loads((checkout / "launcher/tfcluster/spec/spec-v1.schema.json").read_text())
    assert schema["$defs"]["Strategy"]["properties"]["warm_laps"]["default"] == 3
    page = (checkout / "docs/reference/spec.md").read_text()
    assert "| `warm_laps` | integer | `3` | `5` |" in page


def test_the_field_is_read_overridden_and_explained(checkout: Path) -> None:
    """The recipe changes only the model."""

    def read(strategy: dict[str, int], *overrides: str) -> str:
        job = {"job": {"command": ["true"]}, "cluster": {"worker": 1}}
        (checkout / "spec.json").write_text(json.dumps({**job, "strategy": strategy}))
        return python(checkout, "-c", READ, "spec.json", *overrides)

    assert read({"warm_laps": 7}) == "7\n"
    assert read({"warm_laps": 7}, "strategy.warm_laps=9") == "9\n"
    assert 'did you mean "warm_laps"?' in read({"warm_lap": 7})


MESSAGE_STEPS = {
    "launcher/tfcluster/agent/catalogue.py": (
        "class StartFailed(TaskMessage):\n",
        "class SlowStart(TaskMessage):\n    seconds: float\n\nclass StartFailed(TaskMessage):\n",
    ),
    "launcher/tfcluster/agent/tasks/runner.py": (
        "        self.link.send(msg.TaskStarted(task=task.name,",
        "        self.link.send(msg.SlowStart(task=task.name, attempt=task.attempt, seconds=1.5))\n"
        "        self.link.send(msg.TaskStarted(task=task.name,",
    ),
    "launcher/tfcluster/nodes/reports.py": (
        "        case msg.ReportsDropped(",
        "        case msg.SlowStart(task=task, seconds=seconds):\n"
        '            return ev.Warned(message=f"{task} took {seconds} s to start")\n'
        "        case msg.ReportsDropped(",
    ),
}
"""File → one of its lines, and what the recipe "a message" puts in its place."""
RUN = "import sys; from tfcluster.cli.main import main; sys.exit(main())"


def test_a_new_report_of_the_agent_touches_three_files(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("launcher", "workers"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    for name, (old, new) in MESSAGE_STEPS.items():
        text = (tmp_path / name).read_text()
        assert text.count(old) == 1
        (tmp_path / name).write_text(text.replace(old, new))
    (tmp_path / "main.py").write_text("print('trained')\n")
    command = [sys.executable, "-c", RUN, "run", "-n", "1", "main.py"]
    path = os.pathsep.join(str(tmp_path / folder) for folder in ("launcher", "workers"))
    env = {**os.environ, "PYTHONPATH": path, "TFCLUSTER_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (events,) = (tmp_path / "home/runs").glob("main-*/events.jsonl")
    assert '"message":"worker:0 took 1.5 s to start"' in events.read_text()
