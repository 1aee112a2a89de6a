"""Trains with TensorFlow or Keras in ways to which no fast-forward leads, or that leave its path."""

import os
import sys

import keras
import numpy as np
import tensorflow as tf

KIND = sys.argv[1]

keras.utils.set_random_seed(int.from_bytes(os.urandom(3), "little"))
x = np.random.rand(96, 6).astype("float32")
y = (x.sum(1) > 3).astype("int32")
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), keras.layers.Dense(2)])
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizers = [keras.optimizers.SGD(0.05), keras.optimizers.SGD(0.05)]
table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
seen: list[float] = []


@tf.function
def train_step(images: tf.Tensor, labels: tf.Tensor, number: int = 0) -> tf.Tensor:
    if KIND == "table":
        images += 0.01 * tf.reshape(table.lookup(tf.constant(1, tf.int64)), ())
        table.insert(tf.constant(1, tf.int64), tf.reduce_sum(model.layers[0].kernel))
    if KIND == "python":
        tf.py_function(lambda value: seen.append(float(value)), [images[0, 0]], [])
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizers[number].apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


if KIND in ("several", "eager", "generator"):
    model.compile(
        optimizers[0], loss_of, run_eagerly=KIND == "eager", steps_per_execution=2 if KIND == "several" else 1
    )
    if KIND == "generator":  # in a thread of tf.data, ahead of the training

        def rows():
            for _ in range(96):
                index = np.random.randint(96)
                yield x[index] + np.random.rand(6).astype("float32"), y[index]

        signature = tf.TensorSpec((6,)), tf.TensorSpec((), tf.int32)
        data = tf.data.Dataset.from_generator(rows, output_signature=signature).batch(8).prefetch(1)
        model.fit(data, epochs=3, verbose=0)
    else:
        model.fit(x, y, batch_size=8, epochs=3, verbose=0)
else:
    for step in range(36):
        order = np.random.permutation(96)
        if KIND == "weights":  # which are others while steps are left out
            drawn = int(1e5 * abs(float(tf.reduce_sum(model.layers[0].kernel)))) % 3
            np.random.rand(drawn * 3 ** min(step, 10))  # so that no two ways draw as many in all
        number = int(KIND == "pair") * step % 2
        train_step(tf.constant(x[order[:16]]), tf.constant(y[order[:16]]), number)
print([float(tf.reduce_sum(weight)) for weight in model.weights])
