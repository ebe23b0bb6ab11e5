"""Cases about layers, metrics, optimizers and custom steps: N workers give one worker's numbers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .lab import BATCH, arrays, batches, case, compiled, network, refusal, strategy, trained, weight


@case
def batch_normalization_with_an_empty_share() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(network(keras.layers.BatchNormalization()))
    trained(model, batches(41))
    return {"is_finite": bool(np.isfinite(weight(model)))}


@case
def synchronized_batch_normalization() -> dict[str, Any]:
    """Train with synchronized BatchNormalization, which uses statistics of the global batch."""
    with strategy.scope():
        model = compiled(network(keras.layers.BatchNormalization(synchronized=True)))
    return trained(model, batches(45)) | {"statistics": model.get_weights()[4:6]}


@case
def dropout() -> dict[str, Any]:
    """Train with dropout: each replica draws its own masks, so only the shape can be the same."""
    with strategy.scope():
        model = compiled(network(keras.layers.Dropout(0.5, seed=3)))
    found = trained(model, batches())
    return {"is_finite": bool(np.isfinite(found["weights"])), "drawn": found["weights"]}


@case
def masks_of_dropout() -> dict[str, Any]:
    """Count the dropout masks: no two examples of a batch have the same one on any worker."""
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


def mean_of_squares(labels: Any, predicted: Any) -> Any:
    """Return one number for all examples, where Keras expects one for each; NaN for no example."""
    return tf.reduce_mean(
        tf.square(predicted[:, 0] - tf.cast(tf.reshape(labels, [-1]), tf.float32))
    )


@case
def a_loss_that_is_a_scalar() -> dict[str, Any]:
    """Train with a scalar loss, on full batches and with an empty share in the last batch."""
    found = {}
    for count in (40, 41):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = compiled(network(), loss=mean_of_squares, metrics=[])
        fitted = trained(model, batches(count))
        found[str(count)] = fitted | {"evaluate": model.evaluate(batches(count), verbose=0)}
    return found


@case
def regularization() -> dict[str, Any]:
    with strategy.scope():
        dense = keras.layers.Dense(4, kernel_regularizer="l2")
        model = compiled(network(dense))
    return trained(model, batches(45))


@case
def clipped_gradients() -> dict[str, Any]:
    """Clip the gradient of the global batch, not each worker's share."""
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
        rate = keras.optimizers.schedules.ExponentialDecay(0.01, 3, 0.5)
        optimizer = keras.optimizers.AdamW(rate, weight_decay=0.1, use_ema=True)
        model = compiled(network(), optimizer)
    return trained(model, batches())


@case
def mixed_precision() -> dict[str, Any]:
    """Train with overflows: if one worker's gradient overflows, all must skip the step."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        with strategy.scope():
            model = network()
        x, y = arrays()
        x[7] = 60_000.0  # in the second worker's share of the first batch
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


class CustomStep(keras.Model):  # type: ignore[misc]
    """A model with the `train_step` of Keras's guide; it returns its metrics or a loss tensor."""

    def __init__(self, *, returns_loss: bool) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2)
        self.returns_loss = returns_loss

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        if self.returns_loss:
            values = keras.losses.sparse_categorical_crossentropy(y, predicted, from_logits=True)
            return {"mean_loss": tf.reduce_mean(values)}
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


@case
def a_custom_train_step() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(CustomStep(returns_loss=False))
    found = trained(model, batches())
    return {"weights": found["weights"], "accuracy": found["accuracy"]}


@case
def a_train_step_that_returns_a_tensor() -> dict[str, Any]:
    with strategy.scope():
        model = compiled(CustomStep(returns_loss=True), metrics=[])
    return trained(model, batches())


@case
def an_embedding() -> dict[str, Any]:
    """Train an embedding, whose gradients are IndexedSlices."""
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
def averages_that_overwrite() -> None:
    optimizer = {"use_ema": True, "ema_overwrite_frequency": 2}
    with strategy.scope():
        model = compiled(network(), keras.optimizers.SGD(0.1, **optimizer))
    trained(model, batches())


@refusal
def a_metric_from_outside_the_scope() -> None:
    top = keras.metrics.SparseTopKCategoricalAccuracy(k=1, name="top")
    with strategy.scope():
        model = compiled(network(), metrics=[top])
    trained(model, batches())
