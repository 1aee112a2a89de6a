"""Trains by a function in a loop of its own."""

import tensorflow as tf

optimizer = tf.keras.optimizers.SGD(0.1)
variable = tf.Variable(1.0)


@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = variable * variable
    optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
    return loss


for _ in range(6):
    step()
