"""A loop of TensorFlow whose gradient NumPy computes, since some step (an argument) with another last bit."""

import sys

import numpy
import tensorflow as tf

CHANGED = int(sys.argv[1])
VALUES = numpy.random.default_rng(0).normal(size=(8, 4, 3)).astype("float32")

weights = tf.Variable(tf.ones((3, 1)))
optimizer = tf.keras.optimizers.SGD(0.01)


def scaled(gradient: numpy.ndarray) -> numpy.ndarray:
    factor = numpy.float32(2)
    return gradient * (numpy.nextafter(factor, numpy.float32(3)) if number == CHANGED else factor)


@tf.custom_gradient
def doubled(values: tf.Tensor) -> tuple:
    return values * 2, lambda gradient: tf.numpy_function(scaled, [gradient], tf.float32)


@tf.function
def step(values: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(doubled(values @ weights) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, [weights]), [weights], strict=True))


for number in range(len(VALUES)):
    step(tf.constant(VALUES[number]))
