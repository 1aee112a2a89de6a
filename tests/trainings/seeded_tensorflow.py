"""Seeds generators of TensorFlow and Keras by the clock."""

import time

import keras
import tensorflow as tf

tf.random.set_seed(int(time.time() * 1e6) % 2**31)
print(tf.random.uniform([1]).numpy())
tf.compat.v1.set_random_seed(int(time.time() * 1e6) % 2**31)
print(tf.random.uniform([1]).numpy(), tf.random.Generator.from_seed(time.time_ns()).uniform([1]).numpy())
keras.utils.set_random_seed(time.time_ns() % 2**32)
print(tf.random.uniform([1]).numpy())
for generator in (keras.random.SeedGenerator(time.time_ns() % 2**31), keras.random.SeedGenerator()):
    print(keras.random.uniform([1], seed=generator).numpy())
keras.layers.Dropout(0.5, seed=1), keras.random.SeedGenerator(seed=time.time_ns() % 2**31, name="named")
