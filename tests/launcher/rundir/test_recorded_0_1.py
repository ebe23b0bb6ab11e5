"""Runs that tfcluster 0.1 has recorded work with every command that reads them.

`recorded_0_1` has the folders of three runs, without what tasks wrote beside them; machine and
paths are made up.
"""

from __future__ import annotations

import json
import shlex
import shutil
import socket
from pathlib import Path

import pytest
from tests.launcher.conftest import Tfcluster

import tfcluster as api
from tfcluster.coordinator import resume
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths
from tfcluster.web import run_data

RECORDED = Path(__file__).with_name("recorded_0_1")
STATUS = {
    "succeeded": "succeeded",
    "failed": "failed (1)",
    "interrupted": "interrupted (130)",
    "lost": "lost",
}
COMMANDS = {
    "status RUN": "RUN",
    "status RUN --json": "worker:1",
    "logs RUN": "",
    "logs RUN --json": "",
    "checkpoints RUN": "RUN",
    "report RUN -o report.html": "report.html",
    "report RUN --json": "worker:1",
    "compare RUN OTHER": "peak memory",
    "attach RUN": "RUN",
}
"""Command → what it prints."""


@pytest.fixture
def recorded(home_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the recorded runs, and one whose coordinator was killed."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(RECORDED, home_dir)
    runs = home_dir / "runs"
    lost = shutil.copytree(next(runs.glob("interrupted-*")), runs / "lost-20261129-092343-4770")
    state = json.loads((lost / "state.json").read_text())
    state |= {"run": lost.name, "name": "lost", "status": "running", "host": socket.gethostname()}
    (lost / "state.json").write_text(json.dumps(state | {"ended_at": None, "exit_code": None}))
    return runs


@pytest.mark.parametrize("name", STATUS)
def test_every_reading_command_shows_a_run(recorded: Path, tfcluster: Tfcluster, name: str) -> None:
    (folder,) = recorded.glob(f"{name}-*")
    other = "failed" if name == "succeeded" else "succeeded"
    for command, printed in COMMANDS.items():
        done = tfcluster(*shlex.split(command.replace("RUN", folder.name).replace("OTHER", other)))
        text = done.out + done.err
        assert done.code == 0, command
        assert printed.replace("RUN", folder.name) in text, command
        assert "damaged" not in text, command
        if command.startswith("logs"):  # the tasks of the others wrote nothing
            assert ("worker:1" in text) is (name in ("succeeded", "failed"))


def test_ps_lists_them(recorded: Path, tfcluster: Tfcluster) -> None:
    done = tfcluster("ps", "-a")
    assert done.code == 0
    for name, status in STATUS.items():
        assert any(line.startswith(name) and status in line for line in done.out.splitlines())


def test_the_python_api_and_the_web_page_read_them(recorded: Path) -> None:
    runs = {run.state().name: run for run in api.runs()}
    assert runs.keys() == STATUS.keys()
    for run in runs.values():
        assert len(list(run.events())) > 5
        assert set(run.progress()) == {"worker:0", "worker:1"}
        assert run_data.describe_run(run.paths)["snapshot"]["run"] == run.id
        assert run_data.describe_history(run.paths)
    assert runs["succeeded"].progress()["worker:0"].step == 12
    cause = runs["failed"].diagnosis
    assert cause is not None
    assert "ValueError" in cause["root_cause"]["reason"]
    lines = [line.text for line in runs["succeeded"].logs(task="worker:0")]
    assert "trained" in lines


def test_a_run_is_resumed_from_its_checkpoint(recorded: Path) -> None:
    found = resume.find("succeeded")
    assert (found.newest.step, len(found.state), found.damaged) == (12, 1, ())
    assert registry.load_plan(found.source).strategy == "multi_worker_mirrored"


def test_a_lost_run_is_cleaned_up_and_all_are_deleted(recorded: Path, tfcluster: Tfcluster) -> None:
    assert tfcluster("down", "lost").code == 0
    assert registry.load(RunPaths(next(recorded.glob("lost-*")))).ended_at is not None
    assert tfcluster("rm", "failed").code == 0
    assert tfcluster("prune", "--keep", "1", "-y").code == 0
    assert len(list(recorded.iterdir())) == 1
