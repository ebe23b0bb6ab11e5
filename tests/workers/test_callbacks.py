"""Keras's callbacks on two workers: all save, and one writes, in shared and separate folders."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .conftest import PYTHONS, Ended, Gang

# Two TensorFlow processes for each Keras, on two busy cores.
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]
SCRIPT = Path(__file__).with_name("stock_callbacks.py")
CHIEF, OTHER = "worker:0", "worker:1"


@dataclass
class Ran:
    """The results of two workers that ran the script, and their shared folder."""

    tasks: dict[str, Ended]
    shared: Path
    own: Path
    """The parent of each task's own folder."""

    def facts(self, task: str, place: str) -> Any:
        """Return the JSON that the task printed in the line that starts with `place`."""
        lines = self.tasks[task].text.splitlines()
        (line,) = [line for line in lines if line.startswith(f"{place} ")]
        return json.loads(line.removeprefix(f"{place} "))


@pytest.fixture(scope="module", params=[("newest", "keras"), ("tf215", "tf.keras")])
def ran(
    request: pytest.FixtureRequest,
    gang: Gang,
    tmp_path_factory: pytest.TempPathFactory,
) -> Ran:
    python, keras = request.param
    folder = tmp_path_factory.mktemp("shared")
    own = tmp_path_factory.mktemp("own")
    tasks = gang(
        PYTHONS[python],
        [CHIEF, OTHER],
        ["script", str(SCRIPT), keras],
        cwd=folder,
        env=lambda task: {
            "OWN": str(own / task),
            "TFCLUSTER_CHECKPOINT_DIR": str(folder / "backup"),
        },
    )
    for task in tasks.values():
        assert task.code == 0, task.text[-4000:]
    return Ran(tasks, folder, own)


def test_both_workers_report_equal_epochs(ran: Ran) -> None:
    for place in ("shared", "own"):
        assert [ran.facts(task, place)["epochs"] for task in ran.tasks] == [2, 2]
    chief, other = (ran.facts(task, "weights") for task in ran.tasks)
    assert chief == other


def test_with_separate_folders_only_the_chief_writes(ran: Ran) -> None:
    assert ran.facts(OTHER, "own")["seen"] == []
    names = {name.split("/")[0] for name in ran.facts(CHIEF, "own")["seen"]}
    assert names == {"out", "best.keras", "backup", "logs", "log.csv"}


def test_in_a_shared_folder_one_worker_writes(ran: Ran) -> None:
    names = {path.name: path for path in ran.shared.rglob("*") if path.is_file()}
    rows = names["log.csv"].read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["epoch", "0", "1"]
    events = [name for name in names if name.startswith("events.out")]
    assert len(events) == 1, "the file of one process"
    with zipfile.ZipFile(names["best.keras"]) as whole:
        assert whole.testzip() is None
        assert {"config.json", "model.weights.h5"} <= set(whole.namelist())


def test_no_temporary_folder_or_backup_remains(ran: Ran) -> None:
    for place in (ran.shared, ran.own):
        assert not [path for path in place.rglob("*") if "workertemp_" in path.name]
    assert [p for p in (ran.shared / "backup").rglob("*") if p.is_file()] == []


def test_the_chief_reports_each_backup_below_its_checkpoint_directory(ran: Ran) -> None:
    saved = [event for event in ran.tasks[CHIEF].events if event["type"] == "saved"]
    backup = str(ran.shared / "backup")
    assert [event["step"] for event in saved if event["path"] == backup] == [4, 8]
    assert not [event for event in ran.tasks[OTHER].events if event["type"] == "saved"]
