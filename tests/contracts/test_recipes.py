"""Recipes of docs/architecture.md work, tried with an invented field, backend and message."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.pinned  # it generates the schema, as `make generated` does
FIELD = """\
class Strategy(Section):
    warm_laps: int = documented(3, "Steps that are run before the first one counts.", 5)

"""
SECTION = """\
class Box(Section):
    size: Count = documented(1, "Size of each box, in litres.", 2)


class Runtime(Section):
    box: Box = documented(Box.model_construct(), "The boxes of `--backend box`.", {"size": 2})

"""
LINE = '    "docker": "tfcluster.backends.docker",\n'
MODEL_STEPS = (
    ("launcher/tfcluster/spec/sections.py", "class Strategy(Section):\n", FIELD),
    ("launcher/tfcluster/spec/sections.py", "class Runtime(Section):\n", SECTION),
    ("launcher/tfcluster/kinds.py", LINE, LINE + '    "box": "tfcluster.backends.box",\n'),
)
"""A file, one of its lines, and what the recipes "a spec field" and "a backend" put there."""
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
    """Return a copy of the launcher and its generated files, with the field and the backend."""
    copy = tmp_path_factory.mktemp("checkout")
    for folder in ("launcher", "tools", "docs"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests/box_backend", copy / "launcher/tfcluster/backends/box")
    for name, old, new in MODEL_STEPS:
        put(copy / name, old, new)
    python(copy, "-m", "tools.generated")
    return copy


def put(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def python(checkout: Path, *argv: str, code: int = 0) -> str:
    env = {**os.environ, "PYTHONPATH": f"{checkout}/launcher{os.pathsep}{checkout}"}
    done = subprocess.run(
        [sys.executable, *argv], cwd=checkout, env=env, text=True, capture_output=True, timeout=200
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr * (code != 0)


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


RUN = "import sys; from tfcluster.cli.main import main; sys.exit(main())"


def test_a_container_backend_touches_its_folder_a_section_of_the_spec_and_the_registry(
    checkout: Path,
) -> None:
    job = {"job": {"command": ["true"]}, "cluster": {"worker": 2}, "resources": {"gpus": 0}}
    runtime = {"backend": "box", "image": "tf:1", "wrap": ["x"], "network": "private"}
    spec = {**job, "runtime": {**runtime, "box": {"size": 4}}, "checkpoints": {"dir": "/x"}}
    (checkout / "box.json").write_text(json.dumps(spec))
    shown = python(checkout, "-c", RUN, "plan", "box.json", "--json")
    plan = json.loads(shown)
    assert [node["container"]["image"] for node in plan["nodes"]] == ["tf:1", "tf:1"]
    assert [task["node"] for task in plan["tasks"]] == ["worker-0", "worker-1"]
    assert "runtime.wrap has no effect on containers" in shown
    larger = ("plan", "box.json", "--set", "runtime.box.size=9")
    refused = python(checkout, "-c", RUN, *larger, code=2)
    assert "--set runtime.box.size=9: runtime.box.size: such a box has no shared folder" in refused


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


def test_a_new_report_of_the_agent_touches_three_files(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("launcher", "workers"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    for name, (old, new) in MESSAGE_STEPS.items():
        put(tmp_path / name, old, new)
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
