"""Trains with TensorFlow until a step's loss is not finite: tensorflow_noted.py KIND.

Kinds: a function that gives its loss ("returned", "pair" with two optimizers), or keeps it in a metric ("metric"); an
"eager" loop, or one whose scaled gradients overflow as they may ("scaled").
"""

import sys

import keras
import numpy as np
import tensorflow as tf

KIND, STEPS, BAD = sys.argv[1], 40, 9

keras.utils.set_random_seed(3)
x = np.random.rand(8, 4).astype("float32")
model, other = (keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)]) for _ in range(2))
optimizer, second = keras.optimizers.SGD(0.01), keras.optimizers.SGD(0.01)
if KIND == "scaled":
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-12), initial_scale=2.0**120)
mean = keras.metrics.Mean()


def step(factor: tf.Tensor) -> tf.Tensor | None:
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_mean((model(x) - factor * other(x)) ** 2)
        scaled = optimizer.scale_loss(loss) if KIND == "scaled" else loss
    optimizer.apply(tape.gradient(scaled, model.trainable_variables), model.trainable_variables)
    if KIND == "pair":
        second.apply(tape.gradient(loss, other.trainable_variables), other.trainable_variables)
    mean(loss)
    return None if KIND == "metric" else loss


run = step if KIND in ("eager", "scaled") else tf.function(step)
for number in range(STEPS):
    run(tf.constant(1e4 if KIND == "scaled" else np.nan if number == BAD else 1.0))
