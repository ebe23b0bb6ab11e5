"""Evaluates a checkpoint of a job in one process, without a distribution strategy.

    python -m tfcluster_workers.jobs.evaluate CHECKPOINT [--model fashion_cnn] [--dataset NAME]

CHECKPOINT is a prefix (`…/ckpt-3`) or a folder, of which the newest checkpoint is loaded. The model
is `digits_cnn` (of `keras_mnist`, the default) or `fashion_cnn` (of `custom_loop`).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from tfcluster_workers.data import pipeline
from tfcluster_workers.errors import JobError
from tfcluster_workers.jobs.parts import digits_cnn, job_errors, saved_models


def find(path: str) -> str:
    """Return the checkpoint prefix of a prefix or folder. Raises JobError if there is none."""
    import tensorflow as tf

    prefix = tf.train.latest_checkpoint(path) if os.path.isdir(path) else path
    if prefix is None or not os.path.exists(f"{prefix}.index"):
        raise JobError(f"no checkpoint at {path}")
    return str(prefix)


def evaluate(
    checkpoint: str, dataset: str, data_dir: str | None, *, model_name: str = "digits_cnn"
) -> tuple[float, float]:
    """Return loss and accuracy of `checkpoint` on the test split."""
    prefix = find(checkpoint)
    tests: Any = pipeline.load(dataset, "test", data_dir=data_dir)
    shape = tuple(tests.element_spec[0].shape)
    model = saved_models.load(prefix, model=model_name, shape=shape)
    digits_cnn.compile_for_training(saved_models.keras_of(prefix), model)
    loss, accuracy = model.evaluate(tests.batch(96), verbose=0)
    return float(loss), float(accuracy)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print test loss and accuracy of the checkpoint that the command line names."""
    parser = argparse.ArgumentParser(description="Evaluate a checkpoint without a strategy.")
    parser.add_argument("checkpoint", metavar="CHECKPOINT")
    parser.add_argument("--model", choices=tuple(saved_models.MODELS), default="digits_cnn")
    parser.add_argument("--dataset", default=pipeline.SYNTHETIC, metavar="NAME")
    parser.add_argument("--data-dir", metavar="DIR", help="default: $TFDS_DATA_DIR")
    args = parser.parse_args(arguments)
    os.environ.pop("TF_CONFIG", None)
    with job_errors.exit_with_message("evaluate"):
        loss, accuracy = evaluate(
            args.checkpoint, args.dataset, args.data_dir, model_name=args.model
        )
    print(f"test loss {loss:.6f}", flush=True)
    print(f"test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
