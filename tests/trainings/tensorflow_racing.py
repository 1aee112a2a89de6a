"""A bincount of floats, whose threads race: called eagerly, in a tf.function, or in a layer of a model that fits.

Arguments: eager, function or fit; and "steady" for a sum that repeats in the place of bincount.
"""

import sys

import numpy as np
import tensorflow as tf

values = tf.constant(np.random.default_rng(1).random(400_000, dtype=np.float32))
labels = tf.cast(values * 3, tf.int32)
counted = tf.Variable(tf.zeros([3]))
optimizer = tf.keras.optimizers.SGD(1e-6)


def count():
    if sys.argv[2:] == ["steady"]:
        return tf.math.unsorted_segment_sum(values, labels, 3)
    return tf.math.bincount(labels, weights=values)


def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((counted - count()) ** 2)
    gradient = tape.gradient(loss, counted)
    counted.assign_sub(1e-3 * gradient)
    return loss


class Counting(tf.keras.layers.Layer):
    """Adds what was counted."""

    def call(self, batch):
        return batch + 1e-6 * count()


if sys.argv[1] == "eager":
    for _ in range(20):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((counted - count()) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, counted), counted)])
elif sys.argv[1] == "function":
    compiled = tf.function(step)
    for _ in range(20):
        compiled()
else:
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Dense(3, activation="relu"), Counting(), tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
    inputs = np.random.default_rng(2).random((160, 4), dtype=np.float32)
    model.fit(inputs, inputs.sum(1), batch_size=16, epochs=2, verbose=0)
print(counted.numpy().tobytes().hex())
