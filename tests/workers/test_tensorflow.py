"""The jobs and a tutorial's script under real TensorFlow, with a hand-set TF_CONFIG."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
WORKERS = REPOSITORY / "workers"
BOOT = WORKERS / "tfcluster_workers" / "boot.py"
PYTHONS = {
    "newest": os.environ.get("TFCLUSTER_TEST_PYTHON_NEWEST", str(REPOSITORY / ".venv/bin/python")),
    "tf215": os.environ.get(
        "TFCLUSTER_TEST_PYTHON_TF215", str(REPOSITORY / ".venv-tf215/bin/python")
    ),
}
SMALL = ("--epochs", "2", "--examples", "960")
# Several gangs of TensorFlow on two busy cores.
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]


@dataclass
class Task:
    process: subprocess.Popen[str]
    events: socket.socket


@dataclass
class Ended:
    code: int
    text: str
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def losses(self) -> list[float]:
        return [float(loss) for loss in re.findall(r"^epoch \d+ loss (\S+)", self.text, re.M)]

    @property
    def accuracy(self) -> float:
        found = re.findall(r"^test accuracy (\S+)", self.text, re.M)
        assert found, self.text[-3000:]
        return float(found[-1])


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]


def tf_configs(tasks: Sequence[str]) -> dict[str, str]:
    """As the launcher writes them: the evaluator is listed only in its own."""
    ports = dict(zip(tasks, free_ports(len(tasks)), strict=True))
    configs = {}
    for task in tasks:
        cluster: dict[str, list[str]] = {}
        for other, port in ports.items():
            job = other.partition(":")[0]
            if job != "evaluator" or other == task:
                cluster.setdefault(job, []).append(f"127.0.0.1:{port}")
        job, _, index = task.partition(":")
        configs[task] = json.dumps({"cluster": cluster, "task": {"type": job, "index": int(index)}})
    return configs


def run_gang(
    python: str,
    tasks: Sequence[str],
    target: Sequence[str],
    *,
    cwd: Path,
    env: Callable[[str], dict[str, str]],
) -> dict[str, Ended]:
    """Start all tasks through boot; what each left. Output goes to files, so nobody waits."""
    with ExitStack() as stack:
        started = {
            task: start(stack, python, target, cwd, {"TF_CONFIG": config, **env(task)}, cwd / task)
            for task, config in tf_configs(tasks).items()
        }
        return {task: finish(one, cwd / task) for task, one in started.items()}


def start(
    stack: ExitStack,
    python: str,
    target: Sequence[str],
    cwd: Path,
    env: dict[str, str],
    log: Path,
) -> Task:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stack.callback(ours.close)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    with theirs, open(log, "w") as output:
        process = subprocess.Popen(
            [python, str(BOOT), *target],
            env={
                **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "CUDA_VISIBLE_DEVICES": "-1",
                "TFCLUSTER_EVENTS_FD": str(theirs.fileno()),
                **env,
            },
            pass_fds=[theirs.fileno()],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
        )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return Task(process, ours)


def finish(task: Task, log: Path) -> Ended:
    events = []
    while message := task.events.recv(1 << 17):
        events.append(json.loads(message))
    return Ended(task.process.wait(), log.read_text(errors="replace"), events)


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
    """Runs `keras_mnist`, each kind of gang once."""

    folder: Path
    data_dir: Path
    done: dict[tuple[str, int, str], dict[str, Ended]] = field(default_factory=dict)

    def keras(self, tensorflow: str, workers: int, communication: str) -> dict[str, Ended]:
        key = (tensorflow, workers, communication)
        if key not in self.done:
            self.done[key] = self._train(*key)
        return self.done[key]

    def place(self, tensorflow: str, workers: int, communication: str) -> Path:
        return self.folder / f"{tensorflow}-{workers}-{communication}"

    def _train(self, tensorflow: str, workers: int, communication: str) -> dict[str, Ended]:
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
        ended = run_gang(PYTHONS[tensorflow], tasks, target, cwd=place, env=env)
        for task in ended.values():
            assert task.code == 0, task.text[-4000:]
        return ended


@pytest.fixture(scope="module")
def lab(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("keras"), data_dir)


each_tensorflow = pytest.mark.parametrize("tensorflow", list(PYTHONS))


@each_tensorflow
@pytest.mark.parametrize(("workers", "communication"), [(2, "RING"), (2, "AUTO"), (3, "RING")])
def test_the_losses_do_not_depend_on_the_number_of_workers(
    lab: Lab, tensorflow: str, workers: int, communication: str
) -> None:
    (alone,) = lab.keras(tensorflow, 1, "AUTO").values()
    gang = lab.keras(tensorflow, workers, communication)
    assert len(alone.losses) == 2
    for task in gang.values():
        assert task.losses == pytest.approx(alone.losses, abs=1e-4)
        assert task.accuracy == pytest.approx(alone.accuracy, abs=2e-3)
    assert len({task.accuracy for task in gang.values()}) == 1


@each_tensorflow
def test_the_events_tell_the_run(lab: Lab, tensorflow: str) -> None:
    events = lab.keras(tensorflow, 2, "RING")["worker:0"].events
    kinds = [event["type"] for event in events]
    assert kinds.index("waiting_for_peers") < kinds.index("ready") < kinds.index("progress")
    assert {"type": "setting_read", "name": "communication"} in events
    progress = [event for event in events if event["type"] == "progress"]
    assert (progress[0]["step"], progress[-1]["step"]) == (1, 20)
    assert progress[-1]["epoch"] == 2
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
    assert Ended(0, evaluated.stdout).accuracy == gang["worker:0"].accuracy
    assert not list((place / "checkpoints-1").glob("**/ckpt*")), "only the chief's is kept"


def test_a_second_start_goes_on_where_the_first_ended(lab: Lab, tmp_path: Path) -> None:
    (whole,) = lab.keras("tf215", 1, "AUTO").values()

    def train(epochs: str) -> Ended:
        target = ["module", "tfcluster_workers.jobs.keras_mnist", "--examples", "960"]
        env = {
            "TFDS_DATA_DIR": str(lab.data_dir),
            "TFCLUSTER_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
        }
        (ended,) = run_gang(
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
    steps = [event["step"] for event in second.events if event["type"] == "progress"]
    assert (steps[0], steps[-1]) == (11, 20)


def test_the_estimator_trains_and_its_evaluator_ends_by_itself(
    data_dir: Path, tmp_path: Path
) -> None:
    def env(task: str) -> dict[str, str]:
        own = "worker-1" if task == "worker:1" else "chief"
        return {
            "TFDS_DATA_DIR": str(data_dir),
            "TFCLUSTER_CHECKPOINT_DIR": str(tmp_path / own),
        }

    ended = run_gang(
        PYTHONS["tf215"],
        ["worker:0", "worker:1", "evaluator:0"],
        ["module", "tfcluster_workers.jobs.estimator_mnist", "--max-steps=80", "--save-steps=40"],
        cwd=tmp_path,
        env=env,
    )
    assert [task.code for task in ended.values()] == [0, 0, 0], ended["evaluator:0"].text[-4000:]
    assert "evaluated step 80" in ended["evaluator:0"].text
    assert ended["evaluator:0"].accuracy > 0.7
    assert any(event["type"] == "progress" for event in ended["worker:1"].events)


def test_the_estimator_refuses_a_tensorflow_without_it() -> None:
    refused = subprocess.run(
        [PYTHONS["newest"], "-m", "tfcluster_workers.jobs.estimator_mnist"],
        env={**os.environ, "PYTHONPATH": str(WORKERS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert "--python" in refused.stderr.splitlines()[-1]


SETUP = """
import numpy as np
import tensorflow as tf


def mnist_dataset(batch_size):
    rng = np.random.RandomState(0)
    x, y = rng.rand(600, 8, 8).astype(np.float32), rng.randint(0, 10, 600).astype(np.int64)
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(600).repeat().batch(batch_size)


def build_and_compile_model():
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Flatten(input_shape=(8, 8)), layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, optimizer=tf.keras.optimizers.SGD(0.01), metrics=["accuracy"])
    return model
"""
MAIN = """
import json
import os

import tensorflow as tf
import mnist_setup

tf_config = json.loads(os.environ['TF_CONFIG'])
num_workers = len(tf_config['cluster']['worker'])
strategy = tf.distribute.MultiWorkerMirroredStrategy()
dataset = mnist_setup.mnist_dataset(64 * num_workers)
with strategy.scope():
    model = mnist_setup.build_and_compile_model()
model.fit(dataset, epochs=2, steps_per_epoch=20, verbose=2)
open(f"done-{tf_config['task']['index']}", 'w').close()
"""


@each_tensorflow
@pytest.mark.parametrize("workers", [1, 2])
def test_an_unmodified_tutorial_script_shows_progress(
    tmp_path: Path, tensorflow: str, workers: int
) -> None:
    (tmp_path / "mnist_setup.py").write_text(SETUP)
    (tmp_path / "main.py").write_text(MAIN)
    # One worker of the newest TensorFlow takes Keras 3, as a bare script would. TensorFlow 2.15
    # without tf_keras must not get the variable: its tf.keras could not be imported.
    legacy = {"TF_USE_LEGACY_KERAS": "1"} if workers > 1 and tensorflow == "newest" else {}
    ended = run_gang(
        PYTHONS[tensorflow],
        [f"worker:{number}" for number in range(workers)],
        ["script", str(tmp_path / "main.py")],
        cwd=tmp_path,
        env=lambda task: legacy,
    )
    for task in ended.values():
        assert task.code == 0, task.text[-4000:]
        assert "slow compared to the batch time" not in task.text
        kinds = [event["type"] for event in task.events]
        assert kinds[:2] == ["waiting_for_peers", "ready"]
        last = [event for event in task.events if event["type"] == "progress"][-1]
        assert (last["step"], last["epoch"]) == (40, 2)
        assert 1.5 < last["metrics"]["loss"] < 4, "one replica's mean, not the sum of all"
        assert last["examples_per_second"] > last["steps_per_second"] * 63
    assert sorted(path.name for path in tmp_path.glob("done-*")) == [
        f"done-{number}" for number in range(workers)
    ]


def test_an_unknown_data_set_is_refused_with_the_nearest_names(tmp_path: Path) -> None:
    asked = [PYTHONS["newest"], "-m", "tfcluster_workers.data.prepare", "--dataset", "mnits"]
    refused = subprocess.run(
        [*asked, "--data-dir", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(WORKERS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert "no data set named 'mnits'; nearest: mnist, " in refused.stderr.splitlines()[-1]


def test_the_package_imports_without_tensorflow() -> None:
    code = (
        "import sys\nsys.modules['tensorflow'] = None\n"
        "from tfcluster_workers import boot, callbacks, context, keras_choice, reporting, strategy"
    )
    env = {**os.environ, "PYTHONPATH": str(WORKERS)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
