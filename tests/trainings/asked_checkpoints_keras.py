"""Saves the weights after each epoch, and goes on from a named file: KIND EPOCHS [CHECKPOINT].

Kinds: "fit", "data" (fit's batches are in another order each epoch), or a loop that updates in a "function" or
"eagerly". The optimizer, the seeds of dropout and the place in the data are left out.
"""

import os
import sys

import keras
import numpy as np
import tensorflow as tf

KIND, EPOCHS, NAMED = sys.argv[1], int(sys.argv[2]), sys.argv[3:]

keras.utils.set_random_seed(int.from_bytes(os.urandom(4), "little"))
x = np.random.standard_normal((48, 6)).astype("float32")
y = x.sum(1)
layers = [keras.Input((6,)), keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.25)]
model = keras.Sequential([*layers, keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
first, factor = 0, 1.0
for name in NAMED:
    model.load_weights(name, skip_mismatch=True)
    first = int(name.split("-")[1].split(".")[0])


def step(images, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(images, training=True)[:, 0] - labels) ** 2)
    variables = model.trainable_variables
    gradients = [factor * gradient for gradient in tape.gradient(loss, variables)]
    model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return loss


if KIND in ("fit", "data"):
    callback = keras.callbacks.ModelCheckpoint("epoch-{epoch}.weights.h5", save_weights_only=True)
    options = {"epochs": EPOCHS, "initial_epoch": first, "verbose": 0, "callbacks": [callback]}
    rows = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(48).batch(8)
    model.fit(x, y, 8, **options) if KIND == "fit" else model.fit(rows, validation_data=(x, y), **options)
else:
    run = tf.function(step) if KIND == "function" else step
    for epoch in range(first, EPOCHS):
        for images, labels in tf.data.Dataset.from_tensor_slices((x, y)).shuffle(48, seed=epoch).batch(8):
            run(images, labels)
        factor *= 0.9 if KIND == "eagerly" else 1.0
        model.save_weights(f"epoch-{epoch + 1}.weights.h5")
