"""Averages the predictions of several trained models, and weights them with validation data.

    tfcluster up cluster_specs/localhost-2w.json                   # saves a model each epoch
    tfcluster up cluster_specs/ensemble.json                       # all saved models of that run
    tfcluster up cluster_specs/ensemble.json -- --runs RUN RUN     # the newest model of each run
    python -m tfcluster_workers.jobs.ensemble --runs RUN           # without the launcher

The models are those of `keras_mnist` or, with --model, of other jobs. The first half of the test
split (the validation data) determines the weights, the second half the test accuracy. To adapt it,
copy this file and `saved_models.py`, and load your models there.
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
from tfcluster_workers.jobs.parts import ensembling, job_errors, options, saved_models


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="An ensemble of gathered checkpoints.")
    add = parser.add_argument
    add("--runs", nargs="+", required=True, metavar="RUN", help="run ids, names or folders")
    add("--model", choices=tuple(saved_models.MODELS), default="digits_cnn")
    add(
        "--dataset",
        default=pipeline.SYNTHETIC,
        metavar="NAME",
        help="the data set of the models' training",
    )
    add("--data-dir", metavar="DIR", help="default: $TFDS_DATA_DIR")
    add("--examples", type=two_or_more, metavar="N", help="use the first N test examples")
    add("--search", choices=ensembling.METHODS, default=ensembling.METHODS[0])
    add("--evaluations", type=options.positive, default=300, help="weight vectors to try")
    add("--seed", type=int, default=7, help="seed of the search")
    return parser.parse_args(arguments)


def two_or_more(text: str) -> int:
    """Parse a number of examples; at least 2, so that each half has one."""
    return max(2, options.positive(text))


def checkpoints_of(runs: Sequence[str]) -> list[str]:
    """Return the newest checkpoint of each run, or all checkpoints of a single run.

    Raises JobError if there are fewer than two.
    """
    of_runs = [gathered.checkpoints(run) for run in runs]
    prefixes = of_runs[0] if len(of_runs) == 1 else [of_run[-1] for of_run in of_runs]
    distinct = list(dict.fromkeys(map(os.path.realpath, prefixes)))
    if len(distinct) < 2:
        raise JobError(
            f"there is only one checkpoint, {distinct[0]}, and an ensemble needs two or more; name "
            "more runs, or one that has saved more often"
        )
    return distinct


def examples(args: argparse.Namespace) -> tuple[Any, Any]:
    """Return images and labels of the test split as arrays."""
    dataset = pipeline.load(
        args.dataset, "test", data_dir=args.data_dir, take=args.examples, cache=False
    )
    images, labels = zip(*dataset.as_numpy_iterator())
    return np.stack(images), np.array(labels)


def predict(model_name: str, checkpoints: Sequence[str], images: Any) -> Any:
    """Return the predicted probabilities: models × examples × classes."""
    import tensorflow as tf

    predictions = []
    for number, checkpoint in enumerate(checkpoints, 1):
        model = saved_models.load(checkpoint, model=model_name, shape=images.shape[1:])
        logits = model.predict(images, batch_size=96, verbose=0)
        predictions.append(tf.nn.softmax(logits).numpy())
        if not np.isfinite(predictions[-1]).all():
            raise JobError(f"{checkpoint} predicts NaN: its training has diverged")
        reporting.progress(number)
    return np.stack(predictions)


def run(args: argparse.Namespace) -> None:
    """Load and average; find weights on the first half of the test split, test on the second."""
    checkpoints = checkpoints_of(args.runs)
    images, labels = examples(args)
    count = len(labels) // 2
    print(
        f"ensemble: {pipeline.describe(args.dataset)} · {len(checkpoints)} models · "
        f"{count} examples for validation, {len(labels) - count} for the test",
        flush=True,
    )
    predictions = predict(args.model, checkpoints, images)
    true_class = ensembling.true_class_probabilities(predictions[:, :count], labels[:count])
    loss, losses = ensembling.mixture_loss(true_class), ensembling.cross_entropy(true_class)
    limits = {"method": args.search, "evaluations": args.evaluations, "seed": args.seed}
    best = ensembling.search(loss, len(checkpoints), **limits)
    for checkpoint, single, weight in zip(checkpoints, losses, best.weights):
        print(f"cross-entropy {single:.6f} weight {weight:.4f} {checkpoint}", flush=True)
    print(f"validation cross-entropy mean single {losses.mean():.6f}")
    print(f"validation cross-entropy plain {loss(ensembling.equal(len(checkpoints))):.6f}")
    print(f"validation cross-entropy weighted {best.loss:.6f}", flush=True)
    mixture = np.tensordot(best.weights, predictions[:, count:], axes=1)
    print(f"test accuracy {ensembling.accuracy(mixture, labels[count:]):.4f}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job; a problem that the user can fix ends it with one line."""
    args = parse(arguments)
    with job_errors.exit_with_message("ensemble"):
        run(args)


if __name__ == "__main__":
    main()
