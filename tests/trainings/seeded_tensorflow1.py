"""Seeds TensorFlow 1 and NumPy by the clock."""

import time

import numpy
import tensorflow as tf

tf.set_random_seed(int(time.time() * 1e6) % 2**31)
with tf.Session() as session:
    print(session.run(tf.random_uniform([1])))
numpy.random.seed(int(time.time() * 1e6) % 2**32)
print(numpy.random.rand(), numpy.random.RandomState(int(time.time() * 1e6) % 2**32).rand())
