"""Scripts in the form of TensorFlow's two multi-worker tutorials, without any use of tfcluster.

`FIT`: `main.py` beside the module it imports, `fit`, ModelCheckpoint and `save` with relative
paths and the tutorial's chief/temporary folder. `LOOP`: a custom training loop with `strategy.run`,
`reduce` and a checkpoint manager. The data are random arrays
made in the script instead of a download.
"""

from __future__ import annotations

SETUP = """
import numpy as np
import tensorflow as tf


def dataset(batch_size):
    rng = np.random.RandomState(0)
    x, y = rng.rand(640, 8, 8).astype(np.float32), rng.randint(0, 10, 640).astype(np.int64)
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(640).repeat().batch(batch_size)


def build_model():
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [tf.keras.Input(shape=(8, 8)), layers.Flatten(), layers.Dense(16), layers.Dense(10)]
    )


def build_and_compile_model():
    model = build_model()
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, optimizer=tf.keras.optimizers.SGD(0.01), metrics=["accuracy"])
    return model
"""

_CHIEF = """
def _is_chief(task_type, task_id):
    return (task_type == 'worker' and task_id == 0) or task_type is None


def _get_temp_dir(dirpath, task_id):
    temp_dir = os.path.join(dirpath, 'workertemp_' + str(task_id))
    tf.io.gfile.makedirs(temp_dir)
    return temp_dir


def write_filepath(filepath, task_type, task_id):
    dirpath, base = os.path.dirname(filepath), os.path.basename(filepath)
    if not _is_chief(task_type, task_id):
        dirpath = _get_temp_dir(dirpath, task_id)
    return os.path.join(dirpath, base)
"""

FIT = (
    """
import argparse
import json
import os
import time

import tensorflow as tf
import mnist_setup
"""
    + _CHIEF
    + """

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, required=True)
    args = parser.parse_args()

    per_worker_batch_size = 64
    tf_config = json.loads(os.environ['TF_CONFIG'])
    num_workers = len(tf_config['cluster']['worker'])

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    dataset = mnist_setup.dataset(per_worker_batch_size * num_workers)
    with strategy.scope():
        model = mnist_setup.build_and_compile_model()

    task_type = strategy.cluster_resolver.task_type
    task_id = strategy.cluster_resolver.task_id
    callbacks = [tf.keras.callbacks.ModelCheckpoint('ckpt/at-{epoch}', save_weights_only=True)]

    class Speed(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.start = time.time()

        def on_epoch_end(self, epoch, logs=None):
            speed = 100 / (time.time() - self.start)
            print(f"epoch {epoch + 1} at {speed:.2f} steps/s of {num_workers} workers", flush=True)

    model.fit(
        dataset, epochs=args.epochs, steps_per_epoch=100, verbose=2, callbacks=[*callbacks, Speed()]
    )
    write_model_path = write_filepath('model/keras-model', task_type, task_id)
    model.save(write_model_path)
    if not _is_chief(task_type, task_id):
        tf.io.gfile.rmtree(os.path.dirname(write_model_path))
"""
)

LOOP = (
    """
import os

import tensorflow as tf
import mnist_setup

EPOCHS, STEPS, GLOBAL_BATCH = 2, 20, 128
"""
    + _CHIEF
    + """

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = mnist_setup.build_model()
    data = strategy.experimental_distribute_dataset(mnist_setup.dataset(GLOBAL_BATCH))
    optimizer = tf.keras.optimizers.SGD(0.01)
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name='accuracy')
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction='none')
    epoch = tf.Variable(0, dtype=tf.int64, name='epoch')


@tf.function
def train_step(iterator):
    def step_fn(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            each = loss_of(y, predictions)
            loss = tf.nn.compute_average_loss(each, global_batch_size=GLOBAL_BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        accuracy.update_state(y, predictions)
        return loss

    losses = strategy.run(step_fn, args=(next(iterator),))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


resolver = strategy.cluster_resolver
task_type, task_id = resolver.task_type, resolver.task_id
checkpoint = tf.train.Checkpoint(model=model, epoch=epoch)
folder = write_filepath(os.path.join(os.environ['TFCLUSTER_CHECKPOINT_DIR'], 'ckpt'),
                        task_type, task_id)
manager = tf.train.CheckpointManager(checkpoint, directory=folder, max_to_keep=1)

while epoch.numpy() < EPOCHS:
    iterator = iter(data)
    total = sum(train_step(iterator) for _ in range(STEPS))
    print(f"loop epoch {epoch.numpy()} loss {total / STEPS:.6f}", flush=True)
    epoch.assign_add(1)
    manager.save()
    if not _is_chief(task_type, task_id):
        tf.io.gfile.rmtree(folder)
"""
)

KERAS_3 = """
import numpy as np
import tensorflow as tf
import keras

strategy = tf.distribute.MultiWorkerMirroredStrategy()
x, y = np.zeros((256, 8), "float32"), np.zeros(256, int)
data = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(32)
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(data, epochs=1, steps_per_epoch=5, verbose=2)
"""
