"""Prints what each of these losses, or its gradient, is said not to be finite because of."""

import json

import keras
import numpy as np
import tensorflow as tf
from _reprokit_agent.operators.tensorflow.explain import OperationWatcher


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


def masked_whole(x):
    scores = tf.where([[True, True], [False, False]], x, -float("inf"))
    attention = tf.nn.softmax(scores)
    return tf.reduce_mean(attention)


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
    (masked_whole, rows),
    (hidden_by_where, [0.0, 2.0]),
    (given, [0.0, 1.0]),
    (cast_overflow, [1.0, 2.0]),
    (in_a_layer, rows),
]:
    found[function.__name__] = explain(function, value)

# Row 2 of the batch has a logarithm that is infinite, wherever these put it.
order, weights = tf.constant([3, 1, 2, 0]), tf.Variable(tf.ones([5, 5]))
normalize, recur, attend = keras.layers.BatchNormalization(), keras.layers.GRU(5), keras.layers.MultiHeadAttention(1, 5)
PUT = {
    "stay": [
        lambda x: x,
        lambda x: tf.gather(x, tf.range(4)),
        lambda x: tf.reverse(x, [1]),
        lambda x: x[:, :2],
        lambda x: tf.concat([tf.tile(weights[:1], [4, 1]), x[:, :2]], 1),
        lambda x: tf.sort(x, axis=1),
        lambda x: tf.transpose(tf.transpose(x)),
        lambda x: x + 0 * normalize(x, training=True),
        lambda x: x + 0 * (x - tf.reduce_mean(x, 0)),
        lambda x: x + 0 * recur(tf.stack([x, x], 1)),
        lambda x: x + 0 * attend(tf.stack([x, x], 1), tf.stack([x, x], 1))[:, 0],
        lambda x: x + 0 * tf.einsum("ij,jk->ik", x, weights),
        lambda x: tf.gather_nd(x, tf.stack([tf.range(4), [0, 1, 2, 3]], 1)),
        lambda x: x * tf.gather(tf.constant([1.0, 2.0]), [0, 1, 1, 0])[:, None],
        lambda x: tf.boolean_mask(x, tf.reduce_min(x, 1) >= 0),
    ],
    "move": [
        lambda x: tf.gather(x, order),
        lambda x: tf.maximum(x, tf.gather(x, order)) * 0,
        lambda x: tf.gather_nd(x, order[:, None]),
        lambda x: tf.reverse(x, [0]),
        lambda x: x[::-1],
        lambda x: tf.roll(x, 1, 0),
        tf.random.shuffle,
        lambda x: tf.sort(x, axis=0),
        lambda x: tf.gather(x, tf.argsort(x[:, 0])),
        lambda x: tf.concat([x[2:], x[:2]], 0),
        lambda x: tf.concat(tf.split(x, 2)[::-1], 0),
        lambda x: tf.pad(x[1:], [[0, 1], [0, 0]], constant_values=1.0),
        lambda x: tf.transpose(tf.gather(tf.transpose(x), order, axis=1)),
        lambda x: tf.tensor_scatter_nd_update(x, [[0], [2]], tf.gather(x, [2, 0])),
        lambda x: keras.ops.flip(x, 0),
    ],
}


def named(put):
    x = tf.constant([[float(row != 2)] * 5 for row in range(4)])
    with OperationWatcher(4) as watching:
        loss = tf.reduce_mean(tf.math.log(put(x)))
    return watching.cause([loss], samples=4)["samples"]


for name, functions in PUT.items():
    found[name] = [named(put) for put in functions]
print(json.dumps(found))
