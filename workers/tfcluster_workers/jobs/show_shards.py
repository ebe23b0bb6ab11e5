"""Shows which examples each worker reads under each sharding policy, without training.

    tfcluster run -n 2 -m tfcluster_workers.jobs.show_shards [--shard-policy file] [--dataset NAME]

One line a policy and worker: how many examples it read, from which files, and which came first.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tfcluster_workers import strategy as strategies
from tfcluster_workers.data import pipeline
from tfcluster_workers.jobs.parts import endings, options

SHOWN = ("data", "file", "off")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Which examples does each worker read?")
    options.add_data(parser)
    options.add_training(parser)
    parser.set_defaults(shard_policy=None)
    return parser.parse_args(arguments)


def read(ids: Any, strategy: Any, *, batch: int, policy: str) -> list[str]:
    """The ids of what this worker gets of one epoch, in its order."""
    batched = pipeline.batches(ids, batch, drop_remainder=False, policy=policy)
    found: list[str] = []
    for part in strategy.experimental_distribute_dataset(batched):
        for one in strategy.experimental_local_results(part):
            found += [name.decode() for name in one.numpy().ravel()]
    return found


def describe(policy: str, ids: Sequence[str], *, total: int) -> str:
    """One line about what was read. An id is FILE__NUMBER, FILE ends in `-00002-of-00004`."""
    files = Counter(place.partition("__")[0].rpartition("tfrecord-")[2] for place in ids)
    parts = ", ".join(f"{count} of file {name}" for name, count in sorted(files.items()))
    first = ", ".join(place.partition("__")[2] for place in ids[:3])
    return f"{policy:>4}: {len(ids)} of {total} examples ({parts}); the first are {first}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Read one epoch under each policy and say what came."""
    chosen = parse(arguments)
    with endings.told("show_shards"):
        strategy = strategies.make()
        batch = options.global_batch(chosen, strategy.num_replicas_in_sync)
        for policy in [chosen.shard_policy] if chosen.shard_policy else SHOWN:
            ids = pipeline.ids(
                chosen.dataset,
                "train",
                data_dir=chosen.data_dir,
                take=chosen.examples,
                policy=policy,
            )
            total = int(ids.cardinality().numpy())
            found = read(ids, strategy, batch=batch, policy=policy)
            print(describe(policy, found, total=total), flush=True)


if __name__ == "__main__":
    main()
