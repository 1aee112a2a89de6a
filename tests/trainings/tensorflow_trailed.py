"""Trainings by fit and by loops of their own, which save what their trail must hold."""

import random
import struct

import numpy as np
import tensorflow as tf

try:
    import keras
except ImportError:
    from tensorflow import keras

CASE = "fit"
IS_OLD = tf.__version__.startswith("1.")
if not IS_OLD:
    keras.utils.set_random_seed(3)
x, y = np.random.rand(160, 8).astype("float32"), np.random.randint(0, 3, 160)
layers = keras.layers
drops = layers.ReLU() if CASE == "draws_nothing" else layers.Dropout(0.3)
model = keras.Sequential([layers.Dense(8), layers.BatchNormalization(), drops, layers.Dense(3, "softmax")])


class Keep(keras.callbacks.Callback):
    """Saves the weights after the first and the eighteenth batch."""

    count = 0

    def on_batch_end(self, batch, logs=None):
        if self.count in (0, 17):
            np.savez(f"{self.count}.npz", *model.get_weights())
        self.count += 1


def fit():
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x, y, batch_size=16, epochs=2 if IS_OLD else 4, verbose=0, callbacks=[Keep()])
    if not IS_OLD:
        model.train_on_batch(x[:16], y[:16])


def loop():
    model(x)
    optimizer = keras.optimizers.SGD(0.1)
    embedding = tf.Variable(tf.random.normal([20, 3]))
    for _ in range(18):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - 1.0) ** 2) + tf.reduce_sum(tf.gather(embedding, [1, 2]))
        variables = [*model.trainable_variables, embedding]
        gradients = tape.gradient(loss, variables)
        np.savez("gradients.npz", *[gradient.numpy() for gradient in gradients[:-1]])
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
    other = keras.optimizers.SGD(0.1)
    weight = tf.Variable([1.0, 2.0])
    other.build([weight])

    @tf.function
    def compiled():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * weight)
        other.apply_gradients([(tape.gradient(loss, weight), weight)])

    for _ in range(4):
        compiled()
    print(sorted({node.op for node in compiled.get_concrete_function().graph.as_graph_def().node}))


def draws():
    random.random(), np.random.random()
    *words, place = random.getstate()[1]
    state = np.random.get_state()
    for name, values in ("python", [place, *words]), ("numpy", [*state[1].tolist(), state[2]]):
        with open(f"{name}.state", "wb") as file:
            file.write(struct.pack("<625I", *values))
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(x, y, batch_size=80, epochs=1, shuffle=False, verbose=0)


def draws_nothing():
    draws()


globals()[CASE]()
