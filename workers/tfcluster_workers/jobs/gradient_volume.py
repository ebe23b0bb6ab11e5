"""Sums gradients of a known volume in every step: a benchmark of the collective, without data.

    tfcluster up cluster_specs/gradient-volume-2w.json
    tfcluster scale cluster_specs/gradient-volume-2w.json --workers 1,2 --rate 100mbit,1gbit

Each step all-reduces exactly --megabytes × 10^6 bytes of dense float32 gradients and updates the
variables with SGD. --compute-ms waits, as a GPU computes: no core is busy, so more workers than
cores still compute at once. --matmul computes on the core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from tfcluster_workers import context, reporting
from tfcluster_workers import strategy as strategies
from tfcluster_workers.jobs.parts import job_errors, options

_FLOAT_BYTES = 4
_LEARNING_RATE = 1e-3


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="All-reduces gradients of a known volume.")
    add = parser.add_argument
    add("--megabytes", type=megabytes, default=4.0, help="gradients per step, 10^6 bytes")
    add("--variables", type=options.positive, default=4, help="variables they are spread over")
    add("--steps", type=options.positive, default=200)
    add("--batch", type=options.positive, default=1, help="examples per step and worker, as shown")
    add("--compute-ms", type=float, default=0.0, help="time that a step waits, as for a GPU")
    add("--matmul", type=int, default=0, metavar="N", help="multiply two N × N matrices per step")
    return parser.parse_args(arguments)


def megabytes(text: str) -> float:
    """Parse a volume of at least one float32."""
    number = float(text)
    if not number * 1e6 >= _FLOAT_BYTES:
        raise argparse.ArgumentTypeError(f"{text} is less than one float32")
    return number


def split(elements: int, parts: int) -> list[int]:
    """Return `elements` divided into at most `parts` sizes that differ by at most one."""
    parts = min(parts, elements)
    return [elements // parts + (number < elements % parts) for number in range(parts)]


class Model:
    """Variables of the requested volume, and one training step."""

    def __init__(self, strategy: Any, args: argparse.Namespace) -> None:
        import tensorflow as tf

        self.strategy, self.args = strategy, args
        sizes = split(round(args.megabytes * 1e6 / _FLOAT_BYTES), args.variables)
        with strategy.scope():
            self.variables = [tf.Variable(tf.zeros([size])) for size in sizes]
            self.matrix = tf.Variable(tf.ones([args.matmul, args.matmul]), trainable=False)
        self.step = tf.function(self._step)

    def _step(self) -> Any:
        """Run one step on all replicas; return the sum of one element of each gradient."""
        sums = self.strategy.run(self._replica_step)
        return self.strategy.experimental_local_results(sums)[0]

    def _replica_step(self) -> Any:
        import tensorflow as tf

        product = tf.zeros([])
        if self.args.matmul:
            product = tf.reduce_sum(tf.linalg.matmul(self.matrix, self.matrix)) * 0.0
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(variable) for variable in self.variables])
        gradients = [g + product for g in tape.gradient(loss, self.variables)]
        replica = tf.distribute.get_replica_context()
        gradients = replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        for variable, gradient in zip(self.variables, gradients):
            variable.assign_sub(_LEARNING_RATE * gradient)
        return tf.add_n([gradient[0] for gradient in gradients])


def train(args: argparse.Namespace) -> float:
    """Run all steps; return the time of the median step in seconds, the first ten left out."""
    strategy = strategies.make()
    replicas = strategy.num_replicas_in_sync
    model = Model(strategy, args)
    reporting.gradients(model.variables)
    expected = float(len(model.variables) * replicas)
    took = []
    for step in range(1, args.steps + 1):
        began = time.perf_counter()
        time.sleep(args.compute_ms / 1000)
        total = float(model.step())
        took.append(time.perf_counter() - began)
        if total != expected:
            raise AssertionError(f"step {step}: gradients add up to {total}, not {expected}")
        reporting.progress(step, total=args.steps, batch_size=args.batch * replicas)
    reporting.finished()
    return sorted(took[10:] or took)[len(took[10:] or took) // 2]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job; a problem that the user can fix ends it with one line."""
    args, task = parse(arguments), context.current()
    print(
        f"gradient_volume: {task.task} of {task.num_workers} · {args.megabytes:g} MB of gradients"
        f" in {args.variables} variables per step",
        flush=True,
    )
    with job_errors.exit_with_message("gradient_volume"):
        median_s = train(args)
    print(f"median step {median_s * 1000:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
