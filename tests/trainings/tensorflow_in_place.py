"""Trainings whose captured step a script's first step, given the snapshot's batch, does not always stand for.

CASE: row 50 makes the result, or the gradient, of the line that is marked with it infinite or NaN.
"""

import os
import sys
from collections import deque

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(int.from_bytes(os.urandom(3), "big"))
x = np.random.rand(96, 6).astype("float32") + 0.1
x[50] = 0
data = tf.data.Dataset.from_tensor_slices(x).batch(8)
layers = tf.keras.layers
model = tf.keras.Sequential([tf.keras.Input((6,)), layers.Dense(8, "tanh"), layers.Dropout(0.1), layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam(1e-3)


def gradients_of(loss_of, *inputs):
    with tf.GradientTape() as tape:
        loss = loss_of(*inputs)
    return tape.gradient(loss, model.trainable_variables)


def update(gradients):
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def outputs(rows):
    return model(rows, training=True)[:, 0]


def fit():
    def loss_of(truth, predicted):
        return tf.reduce_mean(tf.math.log(truth) * predicted)  # fit

    model.compile(optimizer, loss_of)
    model.fit(x, x[:, :1], batch_size=8, epochs=1, verbose=0, shuffle=False)


def phases():
    @tf.function
    def warm_up(rows):
        update(gradients_of(lambda: tf.reduce_mean(outputs(rows))))

    @tf.function
    def train(rows):
        update(gradients_of(lambda: tf.reduce_mean(outputs(rows) / tf.norm(rows, axis=1))))  # phases

    for number, rows in enumerate(data):
        (warm_up if number < 3 else train)(rows)


def iterated():
    batches = iter(data)

    @tf.function
    def step():
        rows = next(batches)
        update(gradients_of(lambda: tf.reduce_mean(outputs(rows) * tf.math.log(rows[:, 0]))))  # iterated

    for _ in range(12):
        step()


def views():
    for rows in data:
        near = rows + 0.01 * tf.random.uniform(rows.shape) * tf.sign(rows)
        both = tf.concat([near, rows], 0)
        weight = tf.reduce_sum(both, 1)
        update(gradients_of(lambda both, weight: tf.reduce_mean(outputs(both) / weight), both, weight))  # views


def prefetched():
    def loss_of(rows):
        return tf.reduce_mean(tf.sqrt(tf.abs(outputs(rows) * rows[:, 0])))  # prefetched

    ahead = deque()
    for rows in data:
        ahead.append(rows)
        if len(ahead) == 4:
            update(gradients_of(loss_of, ahead.popleft()))


def functions():
    @tf.function
    def gradients_by(rows):
        return gradients_of(lambda: tf.reduce_mean(outputs(rows) * tf.math.log(rows[:, 0])))  # functions

    for rows in data:
        update(gradients_by(rows))


globals()[sys.argv[1]]()
