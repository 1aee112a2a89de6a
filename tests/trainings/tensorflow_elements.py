"""Functions that take one element of an iterator in each call, of every kind that a data set gives."""

import tensorflow as tf

rows = tf.ragged.constant([[1.0, 2.0], [3.0], [4.0, 5.0, 6.0], [7.0]])
numbers = tf.data.Dataset.range(4)


def total(element):
    return tf.reduce_sum(tf.cast(element, tf.float64))  # here


def shown(datasets, read):
    iterator = iter(datasets)

    @tf.function
    def step(taken):
        return total(read(next(taken)))

    print([float(step(iterator)) for _ in datasets], flush=True)


shown(numbers.batch(2), lambda batch: batch)
shown(numbers.map(lambda value: {"value": value, "nothing": None}), lambda batch: batch["value"])
shown(tf.data.Dataset.from_tensor_slices(["1", "2"]), tf.strings.to_number)
shown(tf.data.Dataset.from_tensor_slices(rows).batch(2), lambda batch: batch.flat_values)
shown(tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(tf.eye(4))), lambda row: row.values)
shown(numbers.map(tf.experimental.Optional.from_value), lambda one: one.get_value())
shown(numbers.window(2), lambda window: window.reduce(tf.constant(0, tf.int64), tf.add))
shown(tf.data.Dataset.from_generator(lambda: iter([[1.0], [2.0, 3.0]]), tf.float32), lambda batch: batch)
