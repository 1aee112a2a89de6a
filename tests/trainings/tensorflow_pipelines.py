"""Maps functions of all kinds over data sets, in parallel, by functions that draw random numbers or do not."""

import tensorflow as tf

seed = tf.Variable(0, dtype=tf.int32)


def plain(x):
    return x * 2


def drawing(x):
    return x + tf.random.uniform([])


def keeping(x):
    return x + tf.random.stateless_uniform([], tf.stack([seed.assign_add(1), 7]))


def stateless(x):
    return x + tf.random.stateless_uniform([], [1, 7])


def by_python(x):
    return tf.numpy_function(lambda x: x, [x], tf.float32)


def deep(x):
    return tf.cond(x > 2, lambda: drawing(x), lambda: x)


@tf.function
def inside(data):
    return data.map(drawing, num_parallel_calls=2).reduce(0.0, lambda x, y: x + y)  # inside


data = tf.data.Dataset.range(4).map(lambda x: tf.cast(x, tf.float32))
data.map(drawing)
for function in (plain, stateless, drawing, keeping, by_python, deep):
    data.map(function, num_parallel_calls=2)  # eager
inside(data)
