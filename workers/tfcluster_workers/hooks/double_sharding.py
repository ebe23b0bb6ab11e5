"""Reports the shards that a script takes of datasets which TensorFlow shards again.

`experimental_distribute_dataset`, and Keras's `fit` with it, shards every dataset unless its
`auto_shard_policy` is `OFF` (distribute/input_ops.py). The launcher compares what the workers take
(supervision.alerts).
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from tfcluster_workers import reporting
from tfcluster_workers.hooks.replacing import replaces


def watch_distributed(module: ModuleType) -> None:
    """Watch the datasets that a strategy shards (input_lib)."""

    @replaces(vars(module)["DistributedDataset"], "build")
    def build(stock: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        built = stock(self, *args, **kwargs)
        try:
            context, dataset = self._input_context, self._original_dataset
            policy = dataset.options().experimental_distribute.auto_shard_policy.name
            if context is not None and context.num_input_pipelines > 1 and policy != "OFF":
                for index in shards_of(dataset, context.num_input_pipelines):
                    reporting.sharded(context.num_input_pipelines, index)
        except Exception as error:
            reporting.note(f"tfcluster cannot see how a dataset is sharded: {error!r}")
        return built


def shards_of(dataset: Any, shards: int) -> Iterator[int]:
    """Yield the indexes by which `dataset` and its inputs are made one of so many `shards`.

    An index that is known only while a graph runs is left out.
    """
    waiting, seen = [dataset], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        parts = vars(each).get("_num_shards"), vars(each).get("_index")
        if all(hasattr(part, "numpy") for part in parts):
            number, index = (int(part.numpy()) for part in parts)
            if number == shards:
                yield index
        waiting.extend(each._inputs())
