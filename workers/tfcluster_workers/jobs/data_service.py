"""Trains a small CNN on batches that take long to prepare, by tf.data service or without it.

    tfcluster up cluster_specs/data-service.json
    python -m tfcluster_workers.jobs.data_service                  # one process, no data workers

Each batch waits `--wait-ms`, as one does whose images are fetched and decoded elsewhere, so the
number of data workers decides the number of steps per second. To adapt it, copy this file and
replace `batches` with your input pipeline.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from tfcluster_workers import callbacks, data_service, keras_choice, precision
from tfcluster_workers import strategy as strategies
from tfcluster_workers.jobs.parts import digits_cnn, job_errors, job_start, options


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="A small CNN whose input is the bottleneck.")
    options.add_data(parser)
    options.add_training(parser, epochs=2)
    options.add_strategy(parser)
    add = parser.add_argument
    add("--steps", type=options.positive, default=40, help="steps of an epoch (default: 40)")
    add("--wait-ms", type=options.positive, default=200, help="wait per batch (default: 200)")
    parser.set_defaults(cache=False, prefetch=0)
    return parser.parse_args(arguments)


def batches(args: argparse.Namespace, examples: Any, size: int) -> Any:
    """Return an endless dataset of batches; data workers compute all above `distribute`.

    Each data worker reads all examples (``parallel_epochs``), in an order of its own because the
    job sets no seed of TensorFlow: with one, all of them would compute the same batches.
    """
    import tensorflow as tf
    from tensorflow.python.data.experimental.ops import testing

    ready = job_start.batches(args, examples.shuffle(2048).repeat(), size, training=True)
    slow = ready.apply(testing.sleep(args.wait_ms * 1000))
    served = slow.apply(data_service.distribute("parallel_epochs"))
    return served.prefetch(tf.data.AUTOTUNE)


def train(keras: Any, args: argparse.Namespace) -> tuple[float, float]:
    """Train, then evaluate; return the accuracy and the steps per second after the first epoch."""
    strategy = strategies.make(args.strategy, logical_cpus=args.logical_cpus)
    replicas = strategy.num_replicas_in_sync
    size = options.global_batch(args, replicas)
    precision.apply(keras)
    examples, tests = (job_start.examples(args, split) for split in ("train", "test"))
    with strategy.scope():
        shape = tuple(examples.element_spec[0].shape)
        model = digits_cnn.build(keras, shape=shape, seed=args.seed)
        digits_cnn.compile_for_training(
            keras, model, steps_per_execution=keras_choice.steps_per_execution()
        )
        precision.build(model.optimizer, model)
    job_start.announce(
        "data_service", args, keras=keras, model=model, replicas=replicas, batch=size
    )
    print(f"batches from {data_service.address() or 'this process'}", flush=True)
    checkpoints = callbacks.EpochCheckpoints(model, strategy=strategy, keep=1)
    done, begins = checkpoints.restore(), [time.monotonic()]
    clock = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: begins.append(time.monotonic())
    )
    model.fit(
        batches(args, examples, size),
        steps_per_epoch=args.steps,
        epochs=args.epochs,
        initial_epoch=done,
        shuffle=False,
        verbose=0,
        callbacks=[
            callbacks.epoch_line(keras, model, write=lambda line: print(line, flush=True)),
            checkpoints.callback(keras),
            clock,
        ],
    )
    timed = begins[1:] or begins  # the first epoch also traces and compiles
    seconds = max(timed[-1] - timed[0], 1e-9)
    _, accuracy = model.evaluate(job_start.batches(args, tests, size, training=False), verbose=0)
    checkpoints.close()
    return float(accuracy), args.steps * (len(timed) - 1) / seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job; a problem that the user can fix ends it with one line."""
    args = parse(arguments)
    with job_errors.exit_with_message("data_service"):
        accuracy, speed = train(keras_choice.load(), args)
    print(f"{speed:.1f} steps/s after the first epoch", flush=True)
    print(f"test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
