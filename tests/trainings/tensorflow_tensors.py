"""Trains by Keras' fit, or by a loop of its own that runs eagerly, with an embedding whose gradients are sparse."""

import os
import sys

import numpy as np
import tensorflow as tf

layers = tf.keras.layers
tf.keras.utils.set_random_seed(int.from_bytes(os.urandom(3), "little"))
x, y = np.random.rand(64, 6).astype("float32"), np.random.randint(0, 3, 64)


def fit() -> None:
    model = tf.keras.Sequential([layers.Dense(8, "relu"), layers.Dropout(0.2), layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x, y, batch_size=16, epochs=2, verbose=0)


def loop() -> None:
    table, dense = layers.Embedding(10, 4), layers.Dense(3)
    model = tf.keras.Sequential([table, layers.Flatten(), dense])
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    words = np.random.randint(0, 10, (64, 5))
    for _ in range(6):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(words, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


for name in sys.argv[1:]:
    {"fit": fit, "loop": loop}[name]()
