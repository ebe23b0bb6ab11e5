"""Each worker reads its share of a data set, and bad data are reported with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.documentation import unprinted

from .conftest import PYTHONS, run_plain

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(300)]

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    script, folder = HERE / "data_trials.py", tmp_path_factory.mktemp("trials")
    # TensorFlow 2.15 imports in a third of the time.
    done = run_plain(PYTHONS["tf215"], str(script), str(folder))
    assert done.returncode == 0, done.stderr[-4000:]
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


# -- the synthetic data set ------------------------------------------------------------------------


def test_the_synthetic_data_set_has_several_files_of_labelled_grey_images(
    trials: dict[str, Any],
) -> None:
    assert "shape=(28, 28, 1), dtype=uint8" in trials["features"]
    assert "num_classes=10" in trials["features"]
    assert trials["files"] == [
        f"synthetic_digits-train.tfrecord-{number:05}-of-00004" for number in range(4)
    ]
    assert trials["beside"] == [".prepare-synthetic_digits.lock", "downloads", "synthetic_digits"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("synthetic_digits", "train", None), "480 (28, 28, 1) float32 int64"),
        (("synthetic_digits", "train", 100), "100 (28, 28, 1) float32 int64"),
        (("synthetic_digits", "test", 9999), "80 (28, 28, 1) float32 int64"),
        (("synthetic_digits", "train[:10%]", 7), "7 (28, 28, 1) float32 int64"),
    ],
)
def test_a_part_of_a_split_is_read(
    trials: dict[str, Any], asked: tuple[str, str, int | None], expected: str
) -> None:
    assert trials["loads"][str(asked)] == expected


def test_a_prepared_folder_may_be_copied(trials: dict[str, Any]) -> None:
    assert trials["copied"] == 0.0, "nothing was prepared again"


# -- the shares of the workers ---------------------------------------------------------------------


@pytest.mark.parametrize("pipelines", [2, 3])
@pytest.mark.parametrize("policy", ["data", "file", "auto"])
def test_the_shares_cover_the_data_set_without_overlap(
    trials: dict[str, Any], policy: str, pipelines: int
) -> None:
    shares = trials["shares"][f"{policy} {pipelines}"]
    everything = [name for share in shares for name in share]
    assert len(everything) == len(set(everything)) == 480
    assert len(shares) == pipelines
    assert all(shares)


@pytest.mark.parametrize("pipelines", [2, 3])
def test_by_data_each_worker_reads_every_nth_example_and_by_file_its_own_files(
    trials: dict[str, Any], pipelines: int
) -> None:
    whole = trials["shares"]["off 2"][0]
    assert trials["shares"][f"data {pipelines}"] == [whole[n::pipelines] for n in range(pipelines)]
    files = [
        {name.partition("__")[0] for name in share}
        for share in trials["shares"][f"file {pipelines}"]
    ]
    assert sum(map(len, files)) == len(set.union(*files)) == 4


def test_with_sharding_off_each_worker_reads_everything(trials: dict[str, Any]) -> None:
    first, second = trials["shares"]["off 2"]
    assert first == second
    assert len(first) == 480


def test_the_first_examples_are_shared_by_file_too(trials: dict[str, Any]) -> None:
    assert [len(share) for share in trials["first of files"]] == [120, 120]


def test_a_cache_is_complete_although_its_first_reader_was_dropped(trials: dict[str, Any]) -> None:
    # With plain `cache` more than half of such caches were truncated.
    assert trials["after a dropped reader"] == [20_000] * 12


def test_too_few_files_are_refused_and_auto_shards_by_example(trials: dict[str, Any]) -> None:
    assert trials["too few"] == (
        "TooFewFilesError: --shard-policy file needs a file for each of the 5 workers, and "
        "synthetic_digits train has 4; use --shard-policy data, which splits each batch by example"
    )
    assert trials["auto of too few"] == [96] * 5
    said = trials["too few"].replace("TooFewFilesError", "keras_mnist")
    assert unprinted("tutorials/data.md", "needs a file for each", said) == []


# -- error messages --------------------------------------------------------------------------------


def test_an_unknown_data_set_is_refused_with_the_three_nearest(trials: dict[str, Any]) -> None:
    message = trials["names"]["fashion_mnits"]
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
def test_an_invalid_name_is_refused(trials: dict[str, Any], name: str, expected: str) -> None:
    message = trials["names"][name]
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
    trials: dict[str, Any], asked: tuple[str, str, None], expected: str
) -> None:
    message = trials["loads"][str(asked)]
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
    trials: dict[str, Any], kind: str, expected: str
) -> None:
    message = trials["damages"][kind]
    assert message.startswith("DamagedDatasetError: synthetic_digits in ")
    assert expected in message
    assert f"rm -r {message.split(' in ')[1].split(' is damaged')[0]}" in message


def test_without_a_network_the_message_says_which_files_to_copy(trials: dict[str, Any]) -> None:
    message = trials["offline"]
    assert message.startswith("UnavailableDatasetError: mnist is not in ")
    assert "storage.googleapis.com cannot be reached" in message
    assert "train-images-idx3-ubyte.gz" in message
    assert "/offline/downloads/manual/mnist; --dataset synthetic_digits needs no network" in message
    assert trials["offline left"] == [".prepare-mnist.lock"]


def test_a_server_that_never_answers_times_out(trials: dict[str, Any]) -> None:
    assert "Read timed out" in trials["silent"]


def test_a_folder_that_cannot_be_written_is_reported(trials: dict[str, Any]) -> None:
    assert trials["unwritable"].startswith("DataFolderError: ")
    assert "cannot be written (Not a directory); choose another folder" in trials["unwritable"]
    assert "a folder on this node" in trials["address"]
    assert "in-the-way/synthetic_digits/1.0.0: cannot be written (" in trials["in the way"]
