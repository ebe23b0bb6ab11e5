"""`keras_mnist` under real TensorFlow with a hand-set TF_CONFIG, without the launcher."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from .conftest import PYTHONS

REPOSITORY = Path(__file__).parents[2]
WORKERS = REPOSITORY / "workers"
SMALL = ("--epochs", "2", "--examples", "960")
# Several TensorFlow processes on two busy cores.
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]


class Finished(Protocol):
    code: int
    text: str
    events: list[dict[str, Any]]
    losses: list[float]
    accuracy: float


Gang = Callable[..., dict[str, Finished]]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tfds")
    argv = [PYTHONS["newest"], "-m", "tfcluster_workers.data.prepare", "--data-dir", str(folder)]
    env = {**os.environ, "PYTHONPATH": str(WORKERS)}
    first = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    again = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert "prepared in" in first.stdout
    assert "already there" in again.stdout
    assert "train 12000, test 2000" in again.stdout
    return folder


@dataclass
class Lab:
    """The runs of `keras_mnist`, one for each kind of cluster."""

    gang: Gang
    folder: Path
    data_dir: Path
    done: dict[tuple[str, int, str], dict[str, Finished]] = field(default_factory=dict)

    def keras(self, tensorflow: str, workers: int, communication: str) -> dict[str, Finished]:
        key = (tensorflow, workers, communication)
        if key not in self.done:
            self.done[key] = self._train(*key)
        return self.done[key]

    def place(self, tensorflow: str, workers: int, communication: str) -> Path:
        return self.folder / f"{tensorflow}-{workers}-{communication}"

    def _train(self, tensorflow: str, workers: int, communication: str) -> dict[str, Finished]:
        place = self.place(tensorflow, workers, communication)
        place.mkdir()

        def env(task: str) -> dict[str, str]:
            return {
                "TFDS_DATA_DIR": str(self.data_dir),
                "TFCLUSTER_CHECKPOINT_DIR": str(place / f"checkpoints-{task[-1]}"),
                "TFCLUSTER_TENSORBOARD_DIR": str(place / f"tensorboard-{task[-1]}"),
                "TFCLUSTER_SETTINGS": json.dumps({"communication": communication}),
            }

        tasks = [f"worker:{number}" for number in range(workers)]
        target = ["module", "tfcluster_workers.jobs.keras_mnist", *SMALL]
        ended = self.gang(PYTHONS[tensorflow], tasks, target, cwd=place, env=env)
        for task in ended.values():
            assert task.code == 0, task.text[-4000:]
        return ended


@pytest.fixture(scope="module")
def lab(gang: Gang, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(gang, tmp_path_factory.mktemp("keras"), data_dir)


each_tensorflow = pytest.mark.parametrize("tensorflow", list(PYTHONS))


def totals(progress: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(progress[name] for name in ("epochs", "steps_per_epoch", "total_steps"))


@each_tensorflow
def test_the_losses_do_not_depend_on_the_number_of_workers(lab: Lab, tensorflow: str) -> None:
    """Three workers and other strategies: see tests/integration/jobs/test_keras_mnist.py."""
    (alone,) = lab.keras(tensorflow, 1, "AUTO").values()
    gang = lab.keras(tensorflow, 2, "RING")
    assert len(alone.losses) == 2
    for task in gang.values():
        assert task.losses == pytest.approx(alone.losses, abs=1e-4)
        assert task.accuracy == pytest.approx(alone.accuracy, abs=2e-3)
    assert len({task.accuracy for task in gang.values()}) == 1


@each_tensorflow
def test_the_events_describe_the_run(lab: Lab, tensorflow: str) -> None:
    events = lab.keras(tensorflow, 2, "RING")["worker:0"].events
    kinds = [event["type"] for event in events]
    assert kinds.index("waiting_for_peers") < kinds.index("task_ready") < kinds.index("progress")
    assert {"type": "setting_read", "name": "communication"} in events
    progress = [event for event in events if event["type"] == "progress"]
    assert (progress[0]["step"], progress[-1]["step"]) == (1, 20)
    assert progress[-1]["epoch"] == 2
    assert {totals(event) for event in progress} == {(2, 10, 20)}
    saved = [event for event in events if event["type"] == "saved"]
    assert [event["step"] for event in saved] == [10, 20]


@each_tensorflow
def test_the_chiefs_checkpoint_restores_without_a_strategy(lab: Lab, tensorflow: str) -> None:
    gang = lab.keras(tensorflow, 2, "RING")
    place = lab.place(tensorflow, 2, "RING")
    evaluated = subprocess.run(
        [
            PYTHONS[tensorflow],
            "-m",
            "tfcluster_workers.jobs.evaluate",
            str(place / "checkpoints-0"),
        ],
        env={**os.environ, "PYTHONPATH": str(WORKERS), "TFDS_DATA_DIR": str(lab.data_dir)},
        capture_output=True,
        text=True,
        check=True,
    )
    line = f"test accuracy {gang['worker:0'].accuracy:.4f}"
    assert line in evaluated.stdout
    assert not list((place / "checkpoints-1").glob("**/ckpt*")), (
        "only the chief's checkpoint is kept"
    )


def test_a_second_start_resumes_where_the_first_ended(lab: Lab, tmp_path: Path) -> None:
    (whole,) = lab.keras("tf215", 1, "AUTO").values()

    def train(epochs: str) -> Finished:
        target = ["module", "tfcluster_workers.jobs.keras_mnist", "--examples", "960"]
        env = {
            "TFDS_DATA_DIR": str(lab.data_dir),
            "TFCLUSTER_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
        }
        (ended,) = lab.gang(
            PYTHONS["tf215"],
            ["worker:0"],
            [*target, "--epochs", epochs],
            cwd=tmp_path,
            env=lambda task: env,
        ).values()
        return ended

    assert train("1").losses == pytest.approx(whole.losses[:1], abs=1e-5)
    second = train("2")
    assert "resuming after epoch 1" in second.text
    assert second.losses == pytest.approx(whole.losses[1:], abs=1e-5)
    progress = [event for event in second.events if event["type"] == "progress"]
    assert (progress[0]["step"], progress[-1]["step"]) == (11, 20)
    assert {totals(event) for event in progress} == {(2, 10, 20)}
