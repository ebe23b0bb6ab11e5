"""The examples each worker reads of a data set, and the messages about bad data."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .conftest import PYTHONS, WORKERS, clean_environment

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(300)]

HERE = Path(__file__).parent


def run(*argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `argv` under TensorFlow 2.15, which imports in a third of the time."""
    environ = clean_environment() | {"PYTHONPATH": str(WORKERS)} | (env or {})
    return subprocess.run(
        [PYTHONS["tf215"], *argv], env=environ, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    done = run(str(HERE / "data_trials.py"), str(tmp_path_factory.mktemp("trials")))
    assert done.returncode == 0, done.stderr[-4000:]
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


# -- the synthetic data set ------------------------------------------------------------------------


def test_the_synthetic_data_set_has_several_files_of_labelled_grey_images(
    tried: dict[str, Any],
) -> None:
    assert "shape=(28, 28, 1), dtype=uint8" in tried["features"]
    assert "num_classes=10" in tried["features"]
    assert tried["files"] == [
        f"synthetic_digits-train.tfrecord-{number:05}-of-00004" for number in range(4)
    ]
    assert tried["beside"] == [".prepare-synthetic_digits.lock", "downloads", "synthetic_digits"]


@pytest.mark.parametrize(
    ("asked", "came"),
    [
        (("synthetic_digits", "train", None), "480 (28, 28, 1) float32 int64"),
        (("synthetic_digits", "train", 100), "100 (28, 28, 1) float32 int64"),
        (("synthetic_digits", "test", 9999), "80 (28, 28, 1) float32 int64"),
        (("synthetic_digits", "train[:10%]", 7), "7 (28, 28, 1) float32 int64"),
    ],
)
def test_a_part_of_a_split_is_read(
    tried: dict[str, Any], asked: tuple[str, str, int | None], came: str
) -> None:
    assert tried["loads"][str(asked)] == came


def test_a_prepared_folder_may_be_copied(tried: dict[str, Any]) -> None:
    assert tried["copied"] == 0.0, "nothing was prepared again"


# -- who reads what --------------------------------------------------------------------------------


@pytest.mark.parametrize("pipelines", [2, 3])
@pytest.mark.parametrize("policy", ["data", "file", "auto"])
def test_the_shares_of_all_pipelines_are_the_whole_without_overlap(
    tried: dict[str, Any], policy: str, pipelines: int
) -> None:
    shares = tried["shares"][f"{policy} {pipelines}"]
    everything = [name for share in shares for name in share]
    assert len(everything) == len(set(everything)) == 480
    assert len(shares) == pipelines
    assert all(shares)


@pytest.mark.parametrize("pipelines", [2, 3])
def test_by_data_each_reads_every_nth_and_by_file_its_own_files(
    tried: dict[str, Any], pipelines: int
) -> None:
    whole = tried["shares"]["off 2"][0]
    assert tried["shares"][f"data {pipelines}"] == [whole[n::pipelines] for n in range(pipelines)]
    files = [
        {name.partition("__")[0] for name in share}
        for share in tried["shares"][f"file {pipelines}"]
    ]
    assert sum(map(len, files)) == len(set.union(*files)) == 4


def test_with_sharding_off_each_worker_reads_everything(tried: dict[str, Any]) -> None:
    first, second = tried["shares"]["off 2"]
    assert first == second
    assert len(first) == 480


def test_the_first_examples_are_shared_by_file_too(tried: dict[str, Any]) -> None:
    assert [len(share) for share in tried["first of files"]] == [120, 120]


def test_a_cache_is_complete_although_its_first_reader_was_dropped(tried: dict[str, Any]) -> None:
    # A bare `cache` was cut short for more than half of such readers.
    assert tried["after a dropped reader"] == [20_000] * 12


def test_too_few_files_are_refused_and_auto_shards_by_example(tried: dict[str, Any]) -> None:
    assert tried["too few"] == (
        "TooFewFilesError: --shard-policy file needs a file for each of the 5 workers, and "
        "synthetic_digits train has 4; use --shard-policy data, which splits each batch by example"
    )
    assert tried["auto of too few"] == [96] * 5


# -- error messages --------------------------------------------------------------------------------


def test_an_unknown_data_set_is_refused_with_the_three_nearest(tried: dict[str, Any]) -> None:
    message = tried["names"]["fashion_mnits"]
    name, _, nearest = message.partition("; nearest: ")
    assert name == "UnknownDatasetError: no data set named 'fashion_mnits'"
    assert nearest.split(", ")[0] == "fashion_mnist"
    assert len(nearest.split(", ")) == 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mnist:9.9.9", "cannot be loaded at version 9.9.9, only: 3.0.1"),
        ("cifar10/none", "BuilderConfig none not found"),
        ("no such name", "nearest: "),
        ("", "nearest: "),
    ],
)
def test_an_invalid_name_is_refused(tried: dict[str, Any], name: str, expected: str) -> None:
    message = tried["names"][name]
    assert message.startswith(f"UnknownDatasetError: no data set named {name!r}")
    assert expected in message


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            ("synthetic_digits", "validation", None),
            "it has no split 'validation', only train, test",
        ),
        (("imdb_reviews", "train", None), "its text has the shape ()"),
        (("cats_vs_dogs", "train", None), "its image has the shape (None, None, 3)"),
        (("coco", "train", None), "it has no pairs of image and label"),
    ],
)
def test_unsuitable_data_are_refused_before_the_download(
    tried: dict[str, Any], asked: tuple[str, str, None], expected: str
) -> None:
    message = tried["loads"][str(asked)]
    assert message.startswith(
        f"UnfitDatasetError: {asked[0]} does not work with this job: {expected}"
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("no info", "dataset_info.json is missing"),
        ("info cut off", "dataset_info.json cannot be read"),
        ("no shard", "synthetic_digits-train.tfrecord-00001-of-00004 is missing"),
        ("shard cut off", "the files of train are truncated"),
    ],
)
def test_a_damaged_folder_is_reported_with_the_command_that_removes_it(
    tried: dict[str, Any], kind: str, expected: str
) -> None:
    message = tried["damages"][kind]
    assert message.startswith("DamagedDatasetError: synthetic_digits in ")
    assert expected in message
    assert f"rm -r {message.split(' in ')[1].split(' is damaged')[0]}" in message


def test_without_a_network_the_message_says_which_files_to_copy(tried: dict[str, Any]) -> None:
    message = tried["offline"]
    assert message.startswith("UnavailableDatasetError: mnist is not in ")
    assert "storage.googleapis.com cannot be reached" in message
    assert "train-images-idx3-ubyte.gz" in message
    assert "/offline/downloads/manual/mnist; --dataset synthetic_digits needs no network" in message
    assert tried["offline left"] == [".prepare-mnist.lock"]


def test_a_server_that_never_answers_times_out(tried: dict[str, Any]) -> None:
    assert "Read timed out" in tried["silent"]


def test_a_folder_that_cannot_be_written_is_reported(tried: dict[str, Any]) -> None:
    assert tried["unwritable"].startswith("DataFolderError: ")
    assert "cannot be written (Not a directory); choose another folder" in tried["unwritable"]
    assert "a folder of this node" in tried["address"]
    assert "in-the-way/synthetic_digits/1.0.0: cannot be written (" in tried["in the way"]
