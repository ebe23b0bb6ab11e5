"""Real training with the real command: the example specs and `run` train as documented.

Each run is started once and serves several tests. The workers' package without the launcher
(parity for 3 workers, resuming) is tested in tests/workers.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from . import tutorial
from .jobs.lab import PYTHONS, SPECS, Lab, Trained, a_lab

# Several TensorFlow clusters share two busy cores.
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]


class Runs(Lab):
    """Training runs, each of which is started once."""

    @cache  # noqa: B019 (lives as long as the module's fixture)
    def example_spec(self, name: str) -> Trained:
        return self.train("up", str(SPECS / f"{name}.json"))

    @cache  # noqa: B019
    def fit(self) -> Trained:
        self.line.script("mnist_setup.py", tutorial.SETUP)
        self.line.script("main.py", tutorial.FIT)
        # The script saves in formats that Keras 3 refuses.
        options = ("--set=strategy.communication=RING", "--set=keras.version=2")
        return self.train("run", "-n", "2", *options, "main.py", "--epochs", "2")


@pytest.fixture(scope="module")
def lab() -> Iterator[Runs]:
    with a_lab() as made:
        yield Runs(made.line)


@pytest.fixture(scope="module")
def first(lab: Runs) -> Trained:
    """The result of `tfcluster up cluster_specs/localhost-2w.json`."""
    trained = lab.example_spec("localhost-2w")
    assert trained.code == 0, trained.complaint()
    return trained


# -- the first spec ------------------------------------------------------------------------------


def test_the_first_spec_trains_two_workers_to_95_percent(first: Trained) -> None:
    for task in ("worker:0", "worker:1"):
        (accuracy,) = first.said(task, r"^test accuracy (\S+)")
        assert float(accuracy) >= 0.95
    assert len(first.said("worker:0", r"^tfcluster: patched Keras (\S+) for")) == 1
    assert first.said("worker:1", r"^tfcluster: patched Keras (\S+) for") == []
    (prepared,) = first.of("prepare_finished")
    assert prepared["exit_code"] == 0
    assert first.state["warnings"] == []


def test_a_gathered_checkpoint_restores_without_a_strategy_wherever_it_is_moved(
    first: Trained, lab: Runs, tmp_path: Path
) -> None:
    (accuracy,) = first.said("worker:0", r"^test accuracy (\S+)")
    moved = shutil.copytree(first.folder / "checkpoints", tmp_path / "elsewhere")
    shutil.move(first.folder / "checkpoints", tmp_path / "away")
    try:
        evaluated = subprocess.run(
            [sys.executable, "-m", "tfcluster_workers.jobs.evaluate", str(moved)],
            env=lab.line.env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        shutil.move(tmp_path / "away", first.folder / "checkpoints")
    assert f"test accuracy {accuracy}" in evaluated.stdout


def test_the_speed_in_an_event_is_that_of_the_last_five_seconds(first: Trained) -> None:
    progress = first.reports("worker:0")
    assert {"loss", "accuracy"} <= set(progress[-1]["metrics"])
    assert [event["epoch"] for event in progress] == sorted(e["epoch"] for e in progress)
    assert (progress[-1]["step"], progress[-1]["epoch"]) == (375, 3)
    used = [event["tasks"] for event in first.of("usage")]
    assert used[0].keys() <= {"worker:0", "worker:1"}
    assert max(tasks["worker:0"]["rss_bytes"] for tasks in used if "worker:0" in tasks) > 100e6
    for number, event in enumerate(progress):
        if "steps_per_second" not in event:
            continue
        # Reports arrive a moment after the task has looked at its clock: the one that it measures
        # from may be the one before or after.
        earlier = [n for n, e in enumerate(progress) if e["time"] <= event["time"] - 5]
        since = max(earlier, default=0)
        near = progress[max(0, since - 1) : min(number, since + 2)]
        passed = [(event["step"] - e["step"], event["time"] - e["time"]) for e in near]
        speeds = [steps / seconds for steps, seconds in passed if seconds > 3]
        speed = event["steps_per_second"]
        assert any(speed == pytest.approx(one, rel=0.5) for one in speeds), (speed, passed)
        examples = event["steps_per_second"] * 96
        assert event["examples_per_second"] == pytest.approx(examples, rel=0.01)


def test_the_import_of_tensorflow_and_the_wait_for_peers_are_reported(first: Trained) -> None:
    phases = [event["name"] for event in first.of("task_phase", "worker:0")]
    assert phases == ["importing TensorFlow", "", "waiting for peers"]


def test_status_shows_each_tasks_end_speed_and_memory(first: Trained, lab: Runs) -> None:
    done = lab.line.run("status", "--json", first.folder.name)
    status = json.loads(done.out)
    assert (done.code, status["status"], status["exit_code"]) == (0, "succeeded", 0)
    for task in status["tasks"]:
        assert (task["state"], task["exit_code"], task["ended_by"]) == ("succeeded", 0, "itself")
        assert task["step"] == 375
        assert task["mean_steps_per_second"] > 0
        assert 2e8 < task["peak_rss_bytes"] < 4e9
    assert [checkpoint["step"] for checkpoint in status["checkpoints"]] == [125, 250, 375]


def test_the_run_folder_has_the_complete_tensorboard_files_of_the_chief(first: Trained) -> None:
    code = (
        "import sys\n"
        "from tensorboard.backend.event_processing import event_accumulator as e\n"
        "a = e.EventAccumulator(sys.argv[1], size_guidance={e.TENSORS: 0}); a.Reload()\n"
        "print([t.step for t in a.Tensors('epoch_loss')])\n"
    )
    curves = first.folder / "tensorboard"
    folders = {path.parent for path in curves.rglob("events.out.*")}
    own = {folder for folder in folders if folder.is_relative_to(curves / "tfcluster")}
    assert curves / "tfcluster/worker-0" in own
    (chief,) = [folder for folder in folders - own if "worker-1" not in str(folder)]
    read = subprocess.run(
        [sys.executable, "-c", code, chief], capture_output=True, text=True, check=True
    )
    assert read.stdout.split("\n")[0] == "[0, 1, 2]"


# -- scripts that know nothing of tfcluster --------------------------------------------------------


def test_the_progress_of_a_tutorial_script_is_reported(lab: Runs) -> None:
    trained = lab.fit()
    assert trained.code == 0, trained.complaint()
    for task in ("worker:0", "worker:1"):
        progress = trained.reports(task)
        assert (progress[-1]["step"], progress[-1]["epoch"]) == (200, 2)
        totals = {(e["epochs"], e["steps_per_epoch"], e["total_steps"]) for e in progress}
        assert totals == {(2, 100, 200)}
        assert set(progress[-1]["metrics"]) == {"loss", "accuracy"}
    figures = trained.state["figures"]
    own = [float(trained.said("worker:0", rf"^epoch {n} at (\S+) steps/s")[0]) for n in (1, 2)]
    assert min(own) * 0.5 <= figures["mean_steps_per_second"] <= max(own) * 2
    examples = figures["mean_steps_per_second"] * 128
    assert figures["mean_examples_per_second"] == pytest.approx(examples, rel=0.01)
    said = " ".join(trained.err.split())
    assert "keras.version is 2: tf_keras 2.21.0 is used" in said


def test_files_beside_a_script_and_settings_it_ignores_are_reported_with_a_hint(lab: Runs) -> None:
    outputs, settings = sorted(lab.fit().state["warnings"])
    assert "ckpt/, model/" in outputs
    assert "--set 'checkpoints.outputs=" in outputs
    assert "no task has read strategy.communication = RING" in settings
    assert "tfcluster_workers.strategy.make()" in settings


def test_a_custom_training_loop_trains_and_its_checkpoint_is_gathered(lab: Runs) -> None:
    lab.line.script("mnist_setup.py", tutorial.SETUP)
    lab.line.script("loop.py", tutorial.LOOP)
    trained = lab.train("run", f"--python={PYTHONS['tf215']}", "loop.py")
    assert trained.code == 0, trained.complaint()
    losses = trained.said("worker:0", r"^loop epoch \d loss (\S+)")
    assert len(losses) == 2
    assert losses == trained.said("worker:1", r"^loop epoch \d loss (\S+)")
    assert trained.state["checkpoints"][-1]["kind"] == "tf_checkpoint"


def test_a_keras_3_that_cannot_be_patched_is_explained_before_and_after_the_run(lab: Runs) -> None:
    lab.line.script("keras3.py", tutorial.KERAS_3)
    options = (f"--python={PYTHONS['newest']}", "--set=job.hooks=off")
    trained = lab.train("run", *options, "keras3.py")
    assert trained.code == 1
    said = " ".join(trained.err.split())
    start, _, end = said.partition("root cause")
    for words in (start, end):
        assert "write `import tf_keras as keras`" in words
    cause = trained.state["diagnosis"]["root_cause"]
    assert "PerReplica" in cause["reason"]
    assert len(cause["reason"].splitlines()) < 10


def test_nccl_without_a_gpu_is_refused_before_anything_starts(lab: Runs) -> None:
    before = lab.line.runs()
    done = lab.line.run(
        "up", str(SPECS / "localhost-2w.json"), "--set", "strategy.communication=NCCL"
    )
    assert done.code == 3
    assert "NCCL, but there is no GPU for worker:0, worker:1" in " ".join(done.err.split())
    assert lab.line.runs() == before
