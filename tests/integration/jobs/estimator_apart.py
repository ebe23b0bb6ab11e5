"""An Estimator as in TensorFlow 1 scripts, for test_estimator_apart.py.

Each worker trains by itself on parameter servers, and the evaluator never ends.
"""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf


def examples() -> Any:
    x = tf.random.stateless_normal((256, 8), seed=(1, 2))
    y = tf.reduce_sum(x, axis=1, keepdims=True)
    return tf.data.Dataset.from_tensor_slices(({"x": x}, y)).batch(32)


def model(features: Any, labels: Any, mode: str) -> Any:
    weights = tf.compat.v1.get_variable("weights", [8, 1])
    loss = tf.reduce_mean(tf.square(tf.matmul(features["x"], weights) - labels))
    step = tf.compat.v1.train.get_global_step()
    descent = tf.compat.v1.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=descent)


config = tf.estimator.RunConfig(model_dir="model", save_checkpoints_steps=50)
# max_steps is not used: with it the evaluator would exit by itself.
last = tf.estimator.StopAtStepHook(last_step=int(sys.argv[1]))
train = tf.estimator.TrainSpec(lambda: examples().repeat(), hooks=[last])
evaluate = tf.estimator.EvalSpec(examples, steps=None, start_delay_secs=0, throttle_secs=1)
tf.estimator.train_and_evaluate(tf.estimator.Estimator(model, config=config), train, evaluate)
print("all done", flush=True)
