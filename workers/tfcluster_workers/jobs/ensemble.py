"""Averages the predictions of several trained models, then weights them on validation data.

    tfcluster up cluster_specs/localhost-2w.json                   # keeps a model of each epoch
    tfcluster up cluster_specs/ensemble.json                       # the kept models of that run
    tfcluster up cluster_specs/ensemble.json -- --runs RUN RUN     # the newest model of each run
    python -m tfcluster_workers.jobs.ensemble --runs RUN           # alone

The models are those of `keras_mnist` and, with --model, of other jobs. The first half of the test
split is for the weights (validation), the other for the one test accuracy at the end. Copy this
file and `saved_models.py`, and load your models there.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfcluster_workers import gathered, reporting
from tfcluster_workers.data import pipeline
from tfcluster_workers.errors import JobError
from tfcluster_workers.jobs.parts import endings, ensembling, options, saved_models


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line of the job."""
    parser = argparse.ArgumentParser(description="An ensemble of gathered checkpoints.")
    add = parser.add_argument
    add("--runs", nargs="+", required=True, metavar="RUN", help="run ids, names or folders")
    add("--model", choices=tuple(saved_models.MODELS), default="digits_cnn")
    add("--dataset", default=pipeline.DRAWN, metavar="NAME", help="that the models were trained on")
    add("--data-dir", metavar="DIR", help="default: $TFDS_DATA_DIR")
    add("--examples", type=two_or_more, metavar="N", help="of the first N test examples only")
    add("--search", choices=ensembling.METHODS, default=ensembling.METHODS[0])
    add("--evaluations", type=options.positive, default=300, help="weights to try")
    add("--seed", type=int, default=7, help="of the search")
    return parser.parse_args(arguments)


def two_or_more(text: str) -> int:
    """A number of examples of which each half has one."""
    return max(2, options.positive(text))


def checkpoints_of(runs: Sequence[str]) -> list[str]:
    """The newest checkpoint of each run; all that are kept where there is one run.

    Raises JobError where there are fewer than two.
    """
    kept = [gathered.checkpoints(run) for run in runs]
    found = kept[0] if len(kept) == 1 else [prefixes[-1] for prefixes in kept]
    several = list(dict.fromkeys(map(os.path.realpath, found)))
    if len(several) < 2:
        raise JobError(
            f"there is only one checkpoint, {several[0]}, and an ensemble needs two or more; name "
            "further runs, or one that has saved more often"
        )
    return several


def examples(chosen: argparse.Namespace) -> tuple[Any, Any]:
    """Images and labels of the test split, as arrays."""
    found = pipeline.load(
        chosen.dataset, "test", data_dir=chosen.data_dir, take=chosen.examples, cache=False
    )
    images, labels = zip(*found.as_numpy_iterator())
    return np.stack(images), np.array(labels)


def predict(model_name: str, checkpoints: Sequence[str], images: Any) -> Any:
    """Probabilities: models × examples × classes."""
    import tensorflow as tf

    found = []
    for number, checkpoint in enumerate(checkpoints, 1):
        model = saved_models.load(checkpoint, model=model_name, shape=images.shape[1:])
        found.append(tf.nn.softmax(model.predict(images, batch_size=96, verbose=0)).numpy())
        if not np.isfinite(found[-1]).all():
            raise JobError(f"{checkpoint} does not predict numbers: its training has diverged")
        reporting.progress(number)
    return np.stack(found)


def run(chosen: argparse.Namespace) -> None:
    """Load, average, weight on the first half of the test split, and test once on the other."""
    checkpoints = checkpoints_of(chosen.runs)
    images, labels = examples(chosen)
    count = len(labels) // 2
    print(
        f"ensemble: {pipeline.describe(chosen.dataset)} · {len(checkpoints)} models · "
        f"{count} examples for validation, {len(labels) - count} for the test",
        flush=True,
    )
    predictions = predict(chosen.model, checkpoints, images)
    right = ensembling.of_right_class(predictions[:, :count], labels[:count])
    loss, singles = ensembling.mixture_loss(right), ensembling.cross_entropy(right)
    limits = {"method": chosen.search, "evaluations": chosen.evaluations, "seed": chosen.seed}
    best = ensembling.search(loss, len(checkpoints), **limits)
    for checkpoint, single, weight in zip(checkpoints, singles, best.weights):
        print(f"cross-entropy {single:.6f} weight {weight:.4f} {checkpoint}", flush=True)
    print(f"validation cross-entropy mean single {singles.mean():.6f}")
    print(f"validation cross-entropy plain {loss(ensembling.equal(len(checkpoints))):.6f}")
    print(f"validation cross-entropy weighted {best.loss:.6f}", flush=True)
    mixture = np.tensordot(best.weights, predictions[:, count:], axes=1)
    print(f"test accuracy {ensembling.accuracy(mixture, labels[count:]):.4f}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job; a mistake ends it with one line."""
    chosen = parse(arguments)
    with endings.told("ensemble"):
        run(chosen)


if __name__ == "__main__":
    main()
