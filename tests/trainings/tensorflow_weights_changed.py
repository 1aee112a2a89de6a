"""An eager loop; behind it the weights change if the working directory holds a file "changed"."""

import os

import tensorflow as tf

weights = tf.Variable(tf.ones((3, 1)))
optimizer = tf.keras.optimizers.SGD(0.1)
for _ in range(6):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(weights**2)
    optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
if os.path.exists("changed"):
    weights.assign_add(tf.ones((3, 1)))
