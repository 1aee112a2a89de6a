"""Prints what each of these losses, or its gradient, is said not to be finite because of."""

import json

import keras
import numpy as np
import tensorflow as tf
from _reprokit_agent.capture.tensorflow_explain import OperationWatcher


def norm_at_zero(x):
    return tf.reduce_mean(tf.norm(x, axis=1))


def log_of_zero(x):
    return tf.reduce_mean(tf.math.log(x))


def masked_mean(x):
    mask = tf.constant([[0.0, 0.0], [1.0, 1.0]])
    totals = tf.reduce_sum(x * mask, axis=1)
    return tf.reduce_mean(totals / tf.reduce_sum(mask, axis=1))


def half_overflow(x):
    halves = tf.cast(x, "float16")
    return tf.cast(tf.reduce_sum(halves * halves), "float32")


def handmade(x):
    powers = tf.exp(x)
    return tf.reduce_mean(powers / tf.reduce_sum(powers, axis=1, keepdims=True))


def sqrt_backward(x):
    return tf.reduce_mean(tf.sqrt(x))


def masked_infinity_is_no_cause(x):
    scores = tf.where([[True, False], [True, True]], x, -float("inf"))
    return tf.reduce_mean(tf.nn.softmax(scores)) + tf.reduce_mean(tf.math.log(x))


def hidden_by_where(x):
    return tf.reduce_mean(tf.where(x > 0, tf.math.log(x), 0.0))


def given(x):
    return tf.reduce_mean(x * np.array([np.nan, 1.0], "float32"))


def cast_overflow(x):
    return tf.reduce_mean(tf.cast(tf.cast(x * 1e5, "bfloat16"), "float16"))


layer = keras.layers.Dense(2, kernel_initializer="zeros", activation=lambda x: tf.sqrt(x), name="root")  # noqa: PLW0108
inner = keras.Sequential([keras.layers.Dense(2), layer], name="inner")
outer = keras.Sequential([keras.Input((2,)), inner])


def in_a_layer(x):
    return tf.reduce_mean(outer(x))


def explain(function, value):
    x = tf.Variable(value)
    with OperationWatcher() as watching:
        with tf.GradientTape() as tape:
            loss = function(x)
        gradient = tape.gradient(loss, x)
    bad = [one for one in (gradient, loss) if not np.isfinite(one.numpy()).all()]
    return watching.cause(bad)


found = {}
rows = [[0.0, 0.0], [1.0, 2.0]]
for function, value in [
    (norm_at_zero, rows),
    (log_of_zero, [0.0, 1.0, 0.0]),
    (masked_mean, rows),
    (half_overflow, [1.0, 300.0]),
    (handmade, [[100.0, 1.0], [1.0, 2.0]]),
    (sqrt_backward, [0.0, 2.0]),
    (masked_infinity_is_no_cause, rows),
    (hidden_by_where, [0.0, 2.0]),
    (given, [0.0, 1.0]),
    (cast_overflow, [1.0, 2.0]),
    (in_a_layer, rows),
]:
    found[function.__name__] = explain(function, value)
print(json.dumps(found))
