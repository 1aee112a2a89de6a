"""A parallel map that draws and a bincount of floats, each repeated; prints how many results each gave, up to two."""

import json
import os

import tensorflow as tf


def distinct(function, times):
    """Count different results, up to two."""
    found = set()
    for _ in range(times):
        found.add(function())
        if len(found) == 2:
            break
    return len(found)


@tf.function
def work(x):
    for _ in tf.range(10):
        x = tf.sin(x)
    return x


def augment(x):
    busy = work(tf.ones([tf.cast(x % 7, tf.int32) * 3000 + 1]))
    return tf.cast(x, tf.float32) + tf.random.uniform([], -0.4, 0.4) + 0 * tf.reduce_sum(busy)


def elements():
    tf.random.set_seed(5)
    data = tf.data.Dataset.range(120).map(augment, num_parallel_calls=4, deterministic=False)
    return tuple(float(element) for element in data)


weights = tf.random.stateless_uniform([2_000_000], [1, 2])
labels = tf.cast(weights * 3, tf.int32)
drawn = distinct(elements, 6)
counted = distinct(lambda: tf.math.bincount(labels, weights=weights).numpy().tobytes(), 60)
tf.random.set_seed(int.from_bytes(os.urandom(4), "little"))
with open("elements.json", "w") as file:
    json.dump([float(element) for element in tf.data.Dataset.range(40).map(augment, num_parallel_calls=4)], file)
print(drawn, counted)
