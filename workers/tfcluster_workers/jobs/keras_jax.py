"""Trains a small CNN with Keras on JAX; any number of processes gives the same numbers.

    tfcluster up cluster_specs/keras-jax-2w.json
    KERAS_BACKEND=jax python -m tfcluster_workers.jobs.keras_jax       # one process, no cluster

Each process passes its part of every global batch of 96 to `fit`, and JAX sums the gradients. A
restart continues after the last complete epoch. To adapt it, copy this file and replace
`digits_cnn` with your model and `own_part` with your data.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfcluster_workers import callbacks, context
from tfcluster_workers.data import glyphs
from tfcluster_workers.errors import OptionError
from tfcluster_workers.jobs.parts import digits_cnn, job_errors

GLOBAL_BATCH = 96
TEST_EXAMPLES = 960


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="A small CNN with Keras fit on JAX.")
    add = parser.add_argument
    add("--epochs", type=int, default=3)
    add("--examples", type=int, default=4800, metavar="N", help="synthetic digits (default: 4800)")
    add("--seed", type=int, default=7, help="seed of the initial weights (default: 7)")
    return parser.parse_args(arguments)


def join() -> tuple[int, int]:
    """Join JAX's processes, if the launcher has started several; return their number and our index.

    Keras reads the coordinator's address, the number and the index from KERAS_DISTRIBUTION_….
    """
    if "KERAS_DISTRIBUTION_NUM_PROCESSES" in os.environ:
        keras.distribution.initialize()  # before anything else that computes
    import jax

    # Each process brings its own part of the data, so Keras has nothing to shard.
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    return jax.process_count(), jax.process_index()


def own_part(count: int, *, seed: int, processes: int, index: int) -> tuple[Any, Any]:
    """Return images and labels of this process: its part of each global batch, in their order."""
    images, labels = glyphs.draw(count - count % GLOBAL_BATCH, seed=seed)
    batches = np.arange(len(labels)).reshape(-1, processes, GLOBAL_BATCH // processes)
    own = batches[:, index].ravel()
    return images[own].astype("float32") / 255, labels[own]


def train(args: argparse.Namespace) -> tuple[float, float]:
    """Train and evaluate; return loss and accuracy on the test examples."""
    processes, index = join()
    if GLOBAL_BATCH % processes:
        raise OptionError(f"a global batch of {GLOBAL_BATCH} has no {processes} equal parts")
    keras.utils.set_random_seed(args.seed)
    model = digits_cnn.build(keras, seed=args.seed)
    digits_cnn.compile_for_training(keras, model)
    print(
        f"keras_jax: synthetic digits · {context.current().task}, process {index} of {processes} · "
        f"global batch {GLOBAL_BATCH} · keras {keras.__version__} on {keras.config.backend()}",
        flush=True,
    )
    images, labels = own_part(args.examples, seed=1, processes=processes, index=index)
    model.fit(
        images,
        labels,
        batch_size=GLOBAL_BATCH // processes,
        epochs=args.epochs,
        shuffle=False,
        verbose=0,
        callbacks=[
            callbacks.epoch_line(keras, model, write=lambda line: print(line, flush=True)),
            callbacks.backup_and_restore(keras),
            callbacks.checkpoint(keras, "{epoch:02d}.keras"),
        ],
    )
    images, labels = own_part(TEST_EXAMPLES, seed=2, processes=processes, index=index)
    loss, accuracy = model.evaluate(images, labels, batch_size=GLOBAL_BATCH // processes, verbose=0)
    return float(loss), float(accuracy)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job; a problem that the user can fix ends it with one line."""
    args = parse(arguments)
    with job_errors.exit_with_message("keras_jax"):
        if keras.config.backend() != "jax":
            raise OptionError(f"Keras uses {keras.config.backend()}: set KERAS_BACKEND=jax")
        loss, accuracy = train(args)
    print(f"test loss {loss:.6f}", flush=True)
    print(f"test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
