"""Shows which examples each worker reads under each sharding policy, without training.

    tfcluster run -n 2 -m tfcluster_workers.jobs.show_shards [--shard-policy file] [--dataset NAME]

It prints one line per policy and worker: how many examples it read, from which files, and the first
ones.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tfcluster_workers import strategy as strategies
from tfcluster_workers.data import pipeline
from tfcluster_workers.jobs.parts import job_errors, options

SHOWN = ("data", "file", "off")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Which examples does each worker read?")
    options.add_data(parser)
    options.add_training(parser)
    parser.set_defaults(shard_policy=None)
    return parser.parse_args(arguments)


def read(ids: Any, strategy: Any, *, batch: int, policy: str) -> list[str]:
    """Return the ids of the examples that this worker reads in one epoch, in order."""
    batched = pipeline.batches(ids, batch, drop_remainder=False, policy=policy)
    names: list[str] = []
    for distributed in strategy.experimental_distribute_dataset(batched):
        for local in strategy.experimental_local_results(distributed):
            names += [name.decode() for name in local.numpy().ravel()]
    return names


def describe(policy: str, ids: Sequence[str], *, total: int) -> str:
    """Return one line about `ids`; an id is FILE__NUMBER, FILE ends in `-00002-of-00004`."""
    files = Counter(name.partition("__")[0].rpartition("tfrecord-")[2] for name in ids)
    parts = ", ".join(f"{count} of file {name}" for name, count in sorted(files.items()))
    first = ", ".join(name.partition("__")[2] for name in ids[:3])
    return f"{policy:>4}: {len(ids)} of {total} examples ({parts}); the first are {first}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Read one epoch under each policy and print which examples this worker got."""
    args = parse(arguments)
    with job_errors.exit_with_message("show_shards"):
        strategy = strategies.make()
        batch = options.global_batch(args, strategy.num_replicas_in_sync)
        for policy in [args.shard_policy] if args.shard_policy else SHOWN:
            ids = pipeline.ids(
                args.dataset,
                "train",
                data_dir=args.data_dir,
                take=args.examples,
                policy=policy,
            )
            total = int(ids.cardinality().numpy())
            names = read(ids, strategy, batch=batch, policy=policy)
            print(describe(policy, names, total=total), flush=True)


if __name__ == "__main__":
    main()
