"""A TensorFlow training fed by a parallel map that augments at random, and gives its elements as they are ready."""

import tensorflow as tf


def augment(image):
    return image * tf.random.uniform([256], 0.5, 1.5)


images = tf.random.stateless_uniform([800, 256], [1, 2])
data = tf.data.Dataset.from_tensor_slices(images).map(augment, num_parallel_calls=8, deterministic=False).batch(4)
x = tf.Variable(tf.zeros([256]))
for batch in data:
    x.assign(x * 0.9 + tf.reduce_mean(batch, axis=0))
tf.io.write_file("x.bin", tf.io.serialize_tensor(x))
