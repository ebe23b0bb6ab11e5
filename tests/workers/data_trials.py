"""Reads a small `synthetic_digits` in many ways and prints the results as one line of JSON.

    python data_trials.py FOLDER

One process runs all trials, because importing TensorFlow takes longer than they do.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import tensorflow as tf
import tensorflow_datasets as tfds

from tfcluster_workers.data import network, pipeline, prepare, synthetic_digits

NAME = "synthetic_digits"
TRAIN, TEST = 480, 80
DAMAGES: dict[str, Callable[[Path], object]] = {
    "no info": lambda place: (place / "dataset_info.json").unlink(),
    "info cut off": lambda place: (place / "dataset_info.json").write_text('{"na'),
    "no shard": lambda place: shards(place)[1].unlink(),
    "shard cut off": lambda place: os.truncate(shards(place)[1], 1000),
}


def shards(place: Path) -> list[Path]:
    return sorted(place.glob("*-train.tfrecord*"))


def message_of(trial: Callable[..., object], *given: object) -> str:
    """Return the error's name and message, or the result."""
    try:
        return str(trial(*given))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def damaged(whole: Path, kind: str) -> str:
    folder = shutil.copytree(whole, whole.parent / kind.replace(" ", "-"))
    DAMAGES[kind](folder / NAME / "1.0.0")
    return message_of(prepare.prepare, NAME, folder)


def shares(whole: Path, policy: str, pipelines: int, take: int | None = None) -> list[list[str]]:
    """Return the examples that each input pipeline reads."""
    contexts = [tf.distribute.InputContext(pipelines, number) for number in range(pipelines)]
    return [
        [
            name.decode()
            for name in pipeline.ids(
                NAME,
                "train",
                data_dir=str(whole),
                take=take,
                policy=policy,
                input_context=context,
            ).as_numpy_iterator()
        ]
        for context in contexts
    ]


def silent_server() -> str:
    """Download from a server that accepts the connection and never answers."""
    import requests

    network.ANSWER_S = 0.2
    with socket.create_server(("127.0.0.1", 0)) as server, network.request_timeouts():
        return message_of(requests.get, f"http://127.0.0.1:{server.getsockname()[1]}/x")


def offline(folder: Path) -> str:
    """Prepare without a network, where no name can be resolved."""
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    with mock.patch("socket.getaddrinfo", side_effect=unknown):
        return message_of(prepare.prepare, "mnist", folder)


def in_the_way(folder: Path) -> str:
    """Prepare in a folder where a file has the data set's name, which fails only at the end."""
    folder.mkdir()
    (folder / NAME).touch()
    return message_of(prepare.prepare, NAME, folder)


def read_after_a_dropped_reader(count: int = 20_000) -> int:
    """Return how many examples a cache keeps if its first reader is dropped early."""
    counted = tf.data.Dataset.range(count).map(lambda n: n + 1, num_parallel_calls=2)
    kept = pipeline._cached(counted.prefetch(tf.data.AUTOTUNE))
    next(iter(kept.batch(96).prefetch(100)))
    return sum(1 for _ in kept.batch(96, drop_remainder=True)) * 96 + count % 96


def main(folder: Path) -> dict[str, Any]:
    synthetic_digits.TRAIN_EXAMPLES, synthetic_digits.TEST_EXAMPLES = TRAIN, TEST
    whole = folder / "whole"
    found, _ = prepare.prepare(NAME, whole)
    (folder / "file").touch()

    def load(name: str, split: str, take: int | None = None) -> str:
        examples = pipeline.load(name, split, take=take, data_dir=str(whole))
        image, label = examples.element_spec
        return f"{int(examples.cardinality())} {image.shape} {image.dtype.name} {label.dtype.name}"

    names = ["fashion_mnits", "mnist:9.9.9", "cifar10/none", "no such name", ""]
    loads = [(NAME, "train", None), (NAME, "train", 100), (NAME, "test", 9999)]
    loads += [(NAME, "train[:10%]", 7), (NAME, "validation", None), ("imdb_reviews", "train", None)]
    loads += [("cats_vs_dogs", "train", None), ("coco", "train", None)]
    return {
        "features": str(found.info.features),
        "files": [path.name for path in shards(whole / NAME / "1.0.0")],
        "beside": sorted(path.name for path in whole.iterdir()),
        "copied": prepare.prepare(NAME, shutil.copytree(whole, folder / "copied"))[1],
        "damages": {kind: damaged(whole, kind) for kind in DAMAGES},
        "names": {name: message_of(prepare.prepare, name, whole) for name in names},
        "loads": {str(asked): message_of(load, *asked) for asked in loads},
        "unwritable": message_of(prepare.prepare, NAME, folder / "file" / "below"),
        "address": message_of(prepare.data_dir, "gs://bucket/tfds"),
        "offline": offline(folder / "offline"),
        "in the way": in_the_way(folder / "in-the-way"),
        "offline left": [path.name for path in (folder / "offline").iterdir()],
        "silent": silent_server(),
        "shares": {
            f"{policy} {pipelines}": shares(whole, policy, pipelines)
            for policy in ("data", "file", "off", "auto")
            for pipelines in (2, 3)
        },
        "first of files": shares(whole, "file", 2, 240),
        "too few": message_of(shares, whole, "file", 5),
        "after a dropped reader": [read_after_a_dropped_reader() for _ in range(12)],
        "auto of too few": [len(share) for share in shares(whole, "auto", 5)],
    }


if __name__ == "__main__":
    tfds.disable_progress_bar()
    print(json.dumps(main(Path(sys.argv[1]))))
