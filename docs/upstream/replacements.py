"""What Keras's TensorFlow trainer needs to train on several workers.

`apply.py` puts these functions into a copy of Keras: one that Keras has under
the same name is replaced, but `reduce_per_replica` only begins with the lines
given here. Names that are not defined here are Keras's own.
"""
# ruff: noqa: F821

import tensorflow as tf


def _maybe_symbolic_build(self, iterator=None, data_batch=None):
    if self._distribute_strategy is None:
        # The model is built when the step is traced.
        return
    if iterator is not None:
        for _, _, distributed_iterator in iterator:
            data_batch = _first_replica_batch(
                next(distributed_iterator), self._distribute_strategy
            )
            break
    with self._distribute_strategy.scope():
        self._symbolic_build(data_batch=data_batch)


def reduce_per_replica(values, strategy, reduction):
    is_mean = reduction in ("auto", "mean")
    if is_mean and _collective_all_reduce_multi_worker(strategy):
        return _multi_worker_mean(values, strategy)


def _first_replica_batch(batch, strategy):
    """Returns this process's first replica's share of a distributed batch.

    Only its shapes and dtypes matter. A `PerReplica` value has neither, and
    `Strategy.reduce` accepts no structure of them.
    """
    return tree.map_structure(
        lambda value: strategy.experimental_local_results(value)[0], batch
    )


def _multi_worker_mean(values, strategy):
    """Returns the mean of each value over the replicas of all workers.

    The logs of a step are scalars: they have no axis to reduce over. Scalars of
    the same dtype are reduced together, so that a step has one collective
    however many metrics the model has.
    """
    flat_values = tree.flatten(values)
    groups = {}
    for index, value in enumerate(flat_values):
        group = value.dtype if _is_scalar(value) else index
        groups.setdefault(group, []).append(index)
    for indices in groups.values():
        if len(indices) == 1:
            value = flat_values[indices[0]]
            means = [strategy.reduce("MEAN", value, axis=None)]
        else:
            stacked = tf.stack([flat_values[index] for index in indices])
            means = tf.unstack(
                strategy.reduce("MEAN", stacked, axis=None), num=len(indices)
            )
        for index, mean in zip(indices, means):
            flat_values[index] = mean
    return tree.pack_sequence_as(values, flat_values)
