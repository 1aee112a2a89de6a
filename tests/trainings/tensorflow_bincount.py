"""A TensorFlow training whose only trouble is bincount of floats, which no switch makes deterministic."""

import tensorflow as tf

weights = tf.random.stateless_uniform([2_000_000], [1, 2])
labels = tf.cast(weights * 3, tf.int32)
x = tf.Variable(tf.ones([3]))
for _ in range(60):
    counted = tf.math.bincount(labels, weights=weights)
    x.assign(x * 0.99 + 1e-6 * counted)
tf.io.write_file("x.bin", tf.io.serialize_tensor(x))
