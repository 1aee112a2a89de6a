"""Trains on elements of from_tensor_slices, changed at random, by Keras' fit or a loop, in the midst of an epoch too.

Arguments: fit or loop, and first (ends after 3 batches), resumed (goes on behind these) or whole. Prints each batch.
"""

import sys

import keras
import numpy as np
import tensorflow as tf

SIZE, BATCH, ENDED = 30, 8, 3
kind, part = sys.argv[1:]
keras.utils.set_random_seed(1)
x = np.arange(SIZE, dtype="float32")[:, None]
names = [f"element {number}" for number in range(SIZE)]
samples = tf.data.Dataset.from_tensor_slices(
    (x, np.zeros(SIZE, "float32")) if kind == "fit" else {"x": x, "name": names}
)


def changed(inputs, *others):
    if kind == "fit":
        return inputs + tf.random.uniform([1]) / 2, *others
    return {**inputs, "x": inputs["x"] + tf.random.uniform([1]) / 2}


batches = samples.shuffle(SIZE, seed=1, reshuffle_each_iteration=False).map(changed).batch(BATCH)
batches = batches.skip(ENDED) if part == "resumed" else batches


class Remembering(keras.Model):
    """Keeps what it was called with."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.kept = tf.Variable(tf.zeros([BATCH]), trainable=False, shape=tf.TensorShape([None]))

    def call(self, inputs):
        self.kept.assign(inputs[:, 0])
        return self.dense(inputs)


class Writer(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print(*self.model.kept.numpy().astype(int).tolist(), flush=True)
        if part == "first" and batch + 1 == ENDED:
            sys.exit()


def fit():
    model = Remembering()
    model.compile(keras.optimizers.SGD(1e-6), "mse", jit_compile=False)
    model.fit(batches, verbose=0, callbacks=[Writer()])


def loop():
    weights, optimizer = tf.Variable(tf.zeros([1])), keras.optimizers.SGD(1e-6)
    for number, batch in enumerate(batches):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(batch["x"] * weights - 1.0))
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        print(*batch["x"][:, 0].numpy().astype(int).tolist(), flush=True)
        if part == "first" and number + 1 == ENDED:
            return


fit() if kind == "fit" else loop()
