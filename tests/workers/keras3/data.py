"""Cases about input data, sharding and results: N workers must give one worker's numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .lab import (
    BATCH,
    arrays,
    batches,
    case,
    compiled,
    cross_entropy,
    network,
    strategy,
    trained,
    weight,
)


@case
def full_batches() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(network())
    return trained(model, batches())


@case
def built_by_the_first_batch() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(2)]))
    return trained(model, batches())


@case
def partial_last_batch() -> dict[str, Any]:
    """Train on 45 examples, 5 batches of 8 and one of 5: the workers' last shares are 4 and 1."""
    with strategy.scope():
        model = compiled(network())
    return trained(model, batches(45))


@case
def a_last_batch_for_one_worker_only() -> dict[str, Any]:
    """Train on 41 examples: the last batch is a single one, and the second worker gets none."""
    with strategy.scope():
        model = compiled(network())
    return trained(model, batches(41))


@case
def dict_inputs_and_outputs() -> dict[str, Any]:
    """Train with dict inputs and outputs (keras#20329)."""
    x, y = arrays(45)
    data = tf.data.Dataset.from_tensor_slices(
        ({"left": x[:, :3], "right": x[:, 3:]}, {"kind": y, "sum": x.sum(1)})
    ).batch(BATCH)
    with strategy.scope():
        left, right = keras.Input((3,), name="left"), keras.Input((3,), name="right")
        joined = keras.layers.Concatenate()([left, right])
        outputs = {
            "kind": keras.layers.Dense(2, name="kind")(joined),
            "sum": keras.layers.Dense(1, name="sum")(joined),
        }
        model = keras.Model({"left": left, "right": right}, outputs)
        model.compile(
            keras.optimizers.SGD(0.05),
            loss={"kind": cross_entropy(), "sum": "mse"},
            loss_weights={"kind": 1.0, "sum": 0.3},
            metrics={"kind": ["accuracy"], "sum": ["mae"]},
        )
    found = trained(model, data)
    predicted = model.predict(data, verbose=0)
    return found | {name: values.tolist() for name, values in predicted.items()}


@case
def sample_weights() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(network(), weighted_metrics=["accuracy"], metrics=[])
    return trained(model, batches(45, with_weights=True))


@case
def class_weights_and_arrays() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(network())
    return trained(model, *arrays(45), batch_size=BATCH, class_weight={0: 1.0, 1: 3.0})


@case
def arrays_with_validation_split() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(network())
    return trained(model, *arrays(50), batch_size=BATCH, validation_split=0.2)


@case
def a_generator() -> dict[str, Any]:
    """Train from a generator: building the model must not lose its first batch."""
    x, y = arrays()

    def draw() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        while True:
            for start in range(0, 40, BATCH):
                yield x[start : start + BATCH], y[start : start + BATCH]

    weights = []
    for data in (batches().repeat(), draw()):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = compiled(network())
        weights.append(trained(model, data, steps_per_epoch=5)["weights"])
    # With one worker Keras's own code builds the model and does lose the batch.
    several = strategy.num_replicas_in_sync > 1
    return {"is_as_a_data_set": not several or abs(weights[0] - weights[1]) < 1e-4}


@case
def a_data_set_with_known_shapes() -> dict[str, Any]:
    """Train from data with known shapes: building the model must not read them."""
    readers: list[int] = []

    def draw() -> Iterator[np.ndarray]:
        readers.append(len(readers))
        yield from arrays()[0]

    signature = tf.TensorSpec((6,), tf.float32)
    data = tf.data.Dataset.from_generator(draw, output_signature=signature)
    data = data.map(lambda x: (x, tf.cast(tf.reduce_sum(x) > 3, tf.int32))).batch(BATCH)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    with strategy.scope():
        model = compiled(network())
    model.fit(data.with_options(options), epochs=2, shuffle=False, verbose=0)
    # With one worker Keras's own code builds the model: it reads a batch and drops it.
    several = strategy.num_replicas_in_sync > 1
    return {"is_read_once_an_epoch": not several or len(readers) == 2}


@case
def a_data_set_distributed_by_a_function() -> dict[str, Any]:
    """Train with distribute_datasets_from_function: the script shards the data itself."""

    def own_share(here: Any) -> tf.data.Dataset:
        size = here.get_per_replica_batch_size(BATCH)
        x, y = arrays()
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(size, drop_remainder=True)
        return data.shard(here.num_input_pipelines, here.input_pipeline_id)

    with strategy.scope():
        model = compiled(network())
    data = strategy.distribute_datasets_from_function(own_share)
    return trained(model, data, steps_per_epoch=5, epochs=1)


@case
def several_steps_per_execution() -> dict[str, Any]:
    """Train with executions of 3 steps: the last execution is shorter."""
    with strategy.scope():
        model = compiled(network(), steps_per_execution=3)
    calls: list[int] = []
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: calls.append(batch)
    )
    found = trained(model, batches(45), callbacks=[count])
    whole = model.evaluate(batches(45), verbose=0)
    return found | {"calls": calls, "evaluate": whole, "predict": predicted(model, 45)}


def predicted(model: Any, count: int) -> Any:
    x, _ = arrays(count)
    only_x = tf.data.Dataset.from_tensor_slices(x).batch(BATCH)
    return model.predict(only_x, verbose=0).tolist()


@case
def predictions_in_order() -> dict[str, Any]:
    """Predict in the order of the data, and completely with an uneven last batch."""
    with strategy.scope():
        model = compiled(network())
    by_arrays = model.predict(arrays(45)[0], batch_size=BATCH, verbose=0).tolist()
    found = {str(count): predicted(model, count) for count in (40, 41, 45, 3)}
    return found | {"arrays": by_arrays}


@case
def evaluations() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(network())
    found = {str(n): model.evaluate(batches(n), verbose=0) for n in (40, 41, 45, 3)}
    by_name = model.evaluate(*arrays(45), batch_size=BATCH, return_dict=True, verbose=0)
    return found | {"by_name": by_name}


@case
def single_batches() -> dict[str, Any]:
    """Train with `train_on_batch`: each worker passes its own share, here half of one batch."""
    with strategy.scope():
        model = compiled(network())
    x, y = arrays()
    share = BATCH // strategy.num_replicas_in_sync
    first = share * strategy.cluster_resolver.task_id if share < BATCH else 0
    mine = slice(first, first + share)
    logs = [model.train_on_batch(x[mine], y[mine]) for _ in range(3)]
    tested = model.test_on_batch(x[mine], y[mine], return_dict=True)
    return {"logs": logs, "tested": tested, "weights": weight(model)}


@case
def eager() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(network(), run_eagerly=True)
    return trained(model, batches(13), epochs=1)


@case
def stopped_early() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(network(), keras.optimizers.SGD(5.0))
    stop = keras.callbacks.EarlyStopping(monitor="loss", patience=0)
    slower = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1)
    return trained(model, batches(45), epochs=6, callbacks=[slower, stop])


@case
def batch_logs() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(network())
    seen: list[float] = []
    see = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(float(logs["loss"]))
    )
    trained(model, batches(), epochs=1, callbacks=[see], verbose=1)
    return {"seen": seen}
