"""A data set is prepared once and atomically, also one of TFDS's own."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from . import small_sources
from .conftest import PYTHONS, WORKERS, clean_environment, run_plain

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(300)]

HERE = Path(__file__).parent
STAGING = ".preparing-synthetic_digits-*"
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a script of this folder under TensorFlow 2.15."""
    with ExitStack() as stack:

        def start_script(
            *argv: str, before: tuple[str, ...] = (), **env: str
        ) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [*before, PYTHONS["tf215"], str(HERE / argv[0]), *argv[1:]],
                env=clean_environment() | {"PYTHONPATH": str(WORKERS)} | env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start_script


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def wait_until_half(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    assert any("half of it" in line for line in process.stderr), process.communicate()


def test_concurrent_calls_prepare_a_data_set_once(start: Start, tmp_path: Path) -> None:
    tasks = [start("small_digits.py", "--data-dir", str(tmp_path)) for _ in range(3)]
    outputs = [task.communicate()[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0, 0]
    assert sum("preparing synthetic_digits" in out for out in outputs) == 1
    assert all("(train 320, test 80)" in out for out in outputs)
    assert names_in(tmp_path) == [".prepare-synthetic_digits.lock", "downloads", "synthetic_digits"]


def test_a_stopped_preparation_leaves_nothing(start: Start, tmp_path: Path) -> None:
    process = start("small_digits.py", "stuck", "--data-dir", str(tmp_path))
    wait_until_half(process)
    process.terminate()
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert names_in(tmp_path) == [".prepare-synthetic_digits.lock", "downloads"]


def test_leftovers_of_a_killed_preparation_are_never_read_and_are_removed(
    start: Start, tmp_path: Path
) -> None:
    process = start("small_digits.py", "stuck", "--data-dir", str(tmp_path))
    wait_until_half(process)
    process.kill()
    process.communicate()
    assert len(list(tmp_path.glob(STAGING))) == 1
    assert not (tmp_path / "synthetic_digits").exists()
    second = start("small_digits.py", "--data-dir", str(tmp_path))
    assert "(train 320, test 80)" in second.communicate()[0]
    assert list(tmp_path.glob(STAGING)) == []


def test_a_full_disk_is_reported_and_leaves_nothing(start: Start, tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=256k tmpfs "$0" && "$@"; code=$?; ls -A "$0"; exit $code'
    full = ("unshare", "-Urm", "bash", "-c", mount, str(tmp_path))
    process = start("small_digits.py", "--data-dir", str(tmp_path), before=full)
    out, err = process.communicate()
    assert process.returncode == 1, err
    last = err.splitlines()[-1]
    assert last.startswith(f"prepare: {tmp_path}: no space left for synthetic_digits (")
    assert last.endswith("choose another folder with --data-dir or TFDS_DATA_DIR")
    assert out.splitlines()[1:] == [".prepare-synthetic_digits.lock", "downloads"]


# -- data sets of TFDS --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sources") / "tfds"


@pytest.fixture(scope="module")
def summaries(data_dir: Path) -> dict[str, dict[str, Any]]:
    """Return the summaries of mnist, fashion_mnist and cifar10, by name."""
    script = [str(HERE / "small_sources.py"), str(data_dir), "mnist", "fashion_mnist", "cifar10"]
    done = run_plain(PYTHONS["tf215"], *script)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["name"]: line for line in lines}


@pytest.mark.parametrize(("name", "seed"), [("mnist", 1), ("fashion_mnist", 2)])
def test_mnist_and_fashion_mnist_are_read_from_their_own_files(
    summaries: dict[str, dict[str, Any]], name: str, seed: int
) -> None:
    images, labels = small_sources.images_of((28, 28), small_sources.TRAIN, seed)
    assert summaries[name] == {
        "name": name,
        "shape": [96, 28, 28, 1],
        "dtype": "uint8",
        "images": int(images.sum()),
        "labels": int(labels.sum()),
    }


def test_cifar10_is_read_in_colour(summaries: dict[str, dict[str, Any]]) -> None:
    parts = [small_sources.images_of((3, 32, 32), 19, seed) for seed in range(1, 6)]
    assert (summaries["cifar10"]["shape"], summaries["cifar10"]["dtype"]) == (
        [95, 32, 32, 3],
        "uint8",
    )
    assert summaries["cifar10"]["images"] == sum(int(images.sum()) for images, _ in parts)
    assert summaries["cifar10"]["labels"] == sum(int(labels.sum()) for _, labels in parts)


def test_a_job_builds_its_model_for_the_image_shape(
    summaries: dict[str, dict[str, Any]], data_dir: Path, tmp_path: Path
) -> None:
    argv = ["-m", "tfcluster_workers.jobs.keras_mnist", "--dataset", "cifar10", "--epochs", "1"]
    batch = ("--global-batch", "8")
    env = {"TFDS_DATA_DIR": str(data_dir)}
    done = run_plain(PYTHONS["tf215"], *argv, *batch, cwd=tmp_path, **env)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.startswith("keras_mnist: cifar10 · worker:0 of 1")
    assert "test accuracy" in done.stdout


def test_missing_files_are_downloaded(start: Start, tmp_path: Path) -> None:
    process = start("small_sources.py", str(tmp_path / "tfds"), "mnist", SOURCES="served")
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.splitlines()[0].endswith(", 0 MiB to download")
    assert err.count('-ubyte.gz HTTP/1.1" 200') == 4
    fetched = [path.name for path in (tmp_path / "tfds" / "downloads" / "mnist").iterdir()]
    assert len(fetched) == 8, "four files and what TFDS notes about each"


def test_a_file_with_a_wrong_checksum_is_reported(start: Start, tmp_path: Path) -> None:
    place = tmp_path / "tfds"
    process = start("small_sources.py", str(place), "mnist", SOURCES="as published")
    last = process.communicate()[1].splitlines()[-1]
    assert process.returncode == 1
    assert last.startswith(f"prepare: mnist is not in {place}, and could not be prepared there: ")
    assert "-ubyte.gz, has wrong checksum; " in last
    assert not (place / "mnist").exists()
