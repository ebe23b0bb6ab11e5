"""Many small trainings with Keras 3, to be run by one worker or several: the numbers must agree.

    python keras3_cases.py [CASE…]

Prints `case NAME {JSON}` for each; started by test_keras3.py, through boot.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

BATCH = 8
strategy = tf.distribute.MultiWorkerMirroredStrategy()
CASES: dict[str, Callable[[], dict[str, Any]]] = {}
Case = Callable[[], dict[str, Any]]


REFUSED: dict[str, Callable[[], None]] = {}
"""What several workers are told at once that it cannot work."""


def refusal(function: Callable[[], None]) -> Callable[[], None]:
    REFUSED[function.__name__] = function
    return function


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def arrays(count: int = 40, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.RandomState(seed).rand(count, 6).astype("float32")
    return x, (x.sum(1) > 3).astype("int32")


def batches(count: int = 40, *, with_weights: bool = False) -> tf.data.Dataset:
    x, y = arrays(count)
    parts = (x, y, x[:, 0] * 2) if with_weights else (x, y)
    return tf.data.Dataset.from_tensor_slices(parts).batch(BATCH)


def cross_entropy() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def network(*hidden: Any) -> Any:
    dense = keras.layers.Dense(8, activation="tanh")
    return keras.Sequential([keras.Input((6,)), dense, *hidden, keras.layers.Dense(2)])


def compiled(model: Any, optimizer: Any = None, **options: Any) -> Any:
    optimizer = optimizer or keras.optimizers.SGD(0.1)
    options = {"loss": cross_entropy(), "metrics": ["accuracy"]} | options
    model.compile(optimizer, **options)
    return model


def weight(model: Any) -> float:
    return sum(float(np.abs(value).sum()) for value in model.get_weights())


def trained(model: Any, *data: Any, **options: Any) -> dict[str, Any]:
    options = {"epochs": 2, "verbose": 0, "shuffle": False} | options
    history = model.fit(*data, **options).history
    return {**history, "weights": weight(model)}


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
def adam() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(network(), keras.optimizers.Adam(0.01))
    return trained(model, batches())


@case
def partial_last_batch() -> dict[str, Any]:
    """45 = 5 batches of 8 and one of 5: the workers' shares are 4 and 1."""
    with strategy.scope():
        model = compiled(network())
    return trained(model, batches(45))


@case
def a_last_batch_for_one_worker_only() -> dict[str, Any]:
    """41: the last batch is a single example, the second worker gets none."""
    with strategy.scope():
        model = compiled(network())
    return trained(model, batches(41))


@case
def batch_normalization_with_an_empty_share() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(network(keras.layers.BatchNormalization()))
    trained(model, batches(41))
    return {"is_finite": bool(np.isfinite(weight(model)))}


@case
def batch_normalization() -> dict[str, Any]:
    """Synchronized, the statistics are those of the whole batch."""
    with strategy.scope():
        model = compiled(network(keras.layers.BatchNormalization(synchronized=True)))
    return trained(model, batches()) | {"statistics": model.get_weights()[4:6]}


@case
def synchronized_batch_normalization_partial() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(network(keras.layers.BatchNormalization(synchronized=True)))
    return trained(model, batches(45))


@case
def dropout() -> dict[str, Any]:
    """Each replica draws its own masks: only the shape of the result can be the same."""
    with strategy.scope():
        model = compiled(network(keras.layers.Dropout(0.5, seed=3)))
    found = trained(model, batches())
    return {"is_finite": bool(np.isfinite(found["weights"])), "drawn": found["weights"]}


@case
def masks_of_dropout() -> dict[str, Any]:
    """No two examples of a batch have the same mask, whichever workers they are on."""
    with strategy.scope():
        layer = keras.layers.Dropout(0.5, seed=3)
        layer.build((None, 60))
    share = BATCH // strategy.num_replicas_in_sync

    @tf.function  # type: ignore[untyped-decorator]
    def draw() -> Any:
        drawn = strategy.run(lambda: layer(tf.ones((share, 60)), training=True))
        return strategy.gather(drawn, axis=0)

    masks = draw().numpy() > 0
    return {"masks": len({mask.tobytes() for mask in masks}), "examples": len(masks)}


@case
def several_metrics() -> dict[str, Any]:
    with strategy.scope():
        top = keras.metrics.SparseTopKCategoricalAccuracy(k=1, name="top")
        high = keras.metrics.MeanMetricWrapper(lambda y, p: tf.reduce_max(p, axis=-1), name="high")
        model = compiled(network(), metrics=["accuracy", top, high])
    return trained(model, batches(45))


@case
def metrics_of_probabilities() -> dict[str, Any]:
    head = keras.layers.Dense(1, activation="sigmoid")
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), head])
        metrics = [
            keras.metrics.AUC(name="auc"),
            keras.metrics.Precision(name="precision"),
            keras.metrics.Recall(name="recall"),
            keras.metrics.BinaryIoU(target_class_ids=[0, 1], name="iou"),
            keras.metrics.F1Score(threshold=0.5, name="f1"),
        ]
        compiled(model, loss="binary_crossentropy", metrics=metrics)
    x, y = arrays(45)
    data = tf.data.Dataset.from_tensor_slices((x, y[:, None].astype("float32"))).batch(BATCH)
    found = trained(model, data)
    return found | {"f1": [float(f[0]) for f in found["f1"]]}


@case
def dict_inputs_and_outputs() -> dict[str, Any]:
    """keras#20329."""
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
def validation_data() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(network())
    return trained(model, batches(), validation_data=batches(21))


@case
def a_generator() -> dict[str, Any]:
    """Its first batch is not lost in building: the workers' copies would be out of step."""
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
    # One worker's building, by Keras's own code, does lose it.
    several = strategy.num_replicas_in_sync > 1
    return {"is_as_a_data_set": not several or abs(weights[0] - weights[1]) < 1e-4}


@case
def a_data_set_of_each_workers_own() -> dict[str, Any]:
    """distribute_datasets_from_function: the script shards for itself."""

    def own(here: Any) -> tf.data.Dataset:
        size = here.get_per_replica_batch_size(BATCH)
        x, y = arrays()
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(size, drop_remainder=True)
        return data.shard(here.num_input_pipelines, here.input_pipeline_id)

    with strategy.scope():
        model = compiled(network())
    data = strategy.distribute_datasets_from_function(own)
    return trained(model, data, steps_per_epoch=5, epochs=1)


@case
def regularization() -> dict[str, Any]:
    with strategy.scope():
        dense = keras.layers.Dense(4, kernel_regularizer="l2")
        model = compiled(network(dense))
    return trained(model, batches(45))


@case
def clipped_gradients() -> dict[str, Any]:
    """Clipped is the gradient of the whole batch, not each worker's share."""
    found = {}
    for clip in ({"clipnorm": 0.05}, {"global_clipnorm": 0.05}, {"clipvalue": 0.01}):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = compiled(network(), keras.optimizers.SGD(0.5, **clip))
        found[next(iter(clip))] = trained(model, batches(45))["weights"]
    return found


@case
def averaged_and_decayed_weights() -> dict[str, Any]:
    with strategy.scope():
        optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1, use_ema=True)
        model = compiled(network(), optimizer)
    return trained(model, batches())


@case
def learning_rate_schedule() -> dict[str, Any]:
    with strategy.scope():
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
        model = compiled(network(), keras.optimizers.SGD(schedule, momentum=0.9))
    return trained(model, batches())


@case
def mixed_precision() -> dict[str, Any]:
    """A gradient that overflows on one worker is skipped by all (or they wait for ever)."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        with strategy.scope():
            model = network()
        x, y = arrays()
        x[7] = 60_000.0  # of the second worker's share of the first batch
        with strategy.scope():
            optimizer = keras.optimizers.LossScaleOptimizer(
                keras.optimizers.SGD(0.1), initial_scale=2.0**14
            )
            compiled(model, optimizer)
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
        found = trained(model, data)
        return {
            "is_finite": bool(np.isfinite(found["weights"])),
            "scale": float(keras.ops.convert_to_numpy(optimizer.dynamic_scale)),
            "weights_to_2_digits": round(found["weights"], 1),
        }
    finally:
        keras.mixed_precision.set_global_policy("float32")


@case
def an_overflow_on_one_worker() -> dict[str, Any]:
    with strategy.scope():
        inner = keras.optimizers.SGD(0.01)
        optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**10)
        model = compiled(network(), optimizer)
    x, y = arrays()
    x[7] = np.inf
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    found = trained(model, data, epochs=1)
    return {
        "scale": float(keras.ops.convert_to_numpy(optimizer.dynamic_scale)),
        "weights": found["weights"],
    }


class OwnStep(keras.Model):  # type: ignore[misc]
    """The `train_step` of Keras's own guide, with metrics; and one that hands a loss out."""

    def __init__(self, *, hands_loss_out: bool) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2)
        self.hands_loss_out = hands_loss_out

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        if self.hands_loss_out:
            values = keras.losses.sparse_categorical_crossentropy(y, predicted, from_logits=True)
            return {"mean_loss": tf.reduce_mean(values)}
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


@case
def a_train_step_of_ones_own() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(OwnStep(hands_loss_out=False))
    found = trained(model, batches())
    return {"weights": found["weights"], "accuracy": found["accuracy"]}


@case
def a_train_step_that_hands_a_tensor_out() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(OwnStep(hands_loss_out=True), metrics=[])
    return trained(model, batches())


@case
def several_steps_per_execution() -> dict[str, Any]:
    """5 batches in executions of 3: the last execution is a short one."""
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
    """Complete and in the order of the data, whatever the last batch leaves for whom."""
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
    """`train_on_batch`: each worker gives its own share, here halves of one batch."""
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
def compiled_by_xla() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(network(), jit_compile="auto")
    return {"jit": bool(model.jit_compile)} | trained(model, batches())


@case
def stopped_early() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(network(), keras.optimizers.SGD(5.0))
    stop = keras.callbacks.EarlyStopping(monitor="loss", patience=0)
    slower = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1)
    return trained(model, batches(45), epochs=6, callbacks=[slower, stop])


@case
def a_progress_bar() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(network())
    return trained(model, batches(45), verbose=1)


@case
def batch_logs() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(network())
    seen: list[float] = []
    see = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(float(logs["loss"]))
    )
    trained(model, batches(), epochs=1, callbacks=[see])
    return {"seen": seen}


@case
def an_embedding() -> dict[str, Any]:
    """Its gradients are IndexedSlices."""
    x = np.random.RandomState(0).randint(0, 9, (45, 3))
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(1) % 2)).batch(BATCH)
    with strategy.scope():
        layers = [keras.layers.Embedding(9, 4), keras.layers.Flatten(), keras.layers.Dense(2)]
        model = compiled(keras.Sequential([keras.Input((3,)), *layers]))
    return trained(model, data)


@refusal
def gradient_accumulation() -> None:
    with strategy.scope():
        model = compiled(network(), keras.optimizers.SGD(gradient_accumulation_steps=2))
    trained(model, batches())


@refusal
def a_metric_from_outside_the_scope() -> None:
    top = keras.metrics.SparseTopKCategoricalAccuracy(k=1, name="top")
    with strategy.scope():
        model = compiled(network(), metrics=[top])
    trained(model, batches())


def main(names: list[str]) -> None:
    wanted = {**CASES, **REFUSED} if strategy.num_replicas_in_sync > 1 else CASES
    for name in names or wanted:
        keras.utils.set_random_seed(1)
        keras.backend.clear_session()
        try:
            found = wanted[name]()
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
            traceback.print_exc()
        print("case", name, json.dumps(found, default=lambda v: np.asarray(v).tolist()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
