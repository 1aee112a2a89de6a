"""A loop in eager code, or by NumPy, whose own line makes of a batch that is finite one that is not."""

import keras
import numpy as np
import tensorflow as tf

BY_NUMPY = False
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).standard_normal((32, 4)).astype("float32")
x[16:24, 2] = 0.5  # a standard deviation of 0
model, optimizer = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), keras.optimizers.SGD(1e-2)


def step(batch):
    if BY_NUMPY:
        numbers = batch.numpy()
        batch = (numbers - numbers.mean(0)) / numbers.std(0)
    else:
        batch = (batch - tf.reduce_mean(batch, 0)) / tf.math.reduce_std(batch, 0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(batch, training=True) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


for fetched in tf.data.Dataset.from_tensor_slices(x).batch(8):
    step(fetched)
