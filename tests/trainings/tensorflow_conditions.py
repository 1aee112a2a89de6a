"""Trainings that meet one condition in step 12 each; a test puts in NAMES those that a process makes."""

import keras
import numpy as np
import tensorflow as tf

layers, BAD = keras.layers, 97
random = np.random.default_rng(0)
x = (random.random((128, 4)) + 0.5).astype("float32")
y = np.concatenate([random.random((128, 1)), np.zeros((128, 1))], 1).astype("float32")
high, steep, zero = y.copy(), y.copy(), x.copy()
high[BAD, 0], steep[BAD, 1], zero[BAD, 2] = 100.0, 1e4, 0.0
DATA = {"loss": (x, high), "jump": (x, steep), "activation": (zero, y)}


class Reciprocal(layers.Layer):
    def call(self, inputs):
        return 1 / inputs


class Bounded(layers.Layer):
    def call(self, inputs):
        return tf.minimum(inputs, 2.0)


def small():
    inner = [layers.Dense(4), layers.Dropout(0.3), layers.Dense(1)]
    return keras.Sequential([keras.Input((4,)), Reciprocal(name="reciprocal"), Bounded(), *inner])


def error(truth, out):
    slope = truth[:, 1:] * (out - tf.stop_gradient(out))  # which adds nothing but a gradient
    return tf.reduce_mean((out - truth[:, :1]) ** 2 + slope)


def fit(what, **options):
    model = small()
    model.compile(keras.optimizers.SGD(1e-3), error, **options)
    model.fit(*DATA[what], batch_size=8, shuffle=False, verbose=0)


def loop(what, wrap):
    model, optimizer = small(), keras.optimizers.SGD(1e-3)

    def step(a, b):
        with tf.GradientTape() as tape:
            a *= tf.random.uniform(tf.shape(a), 0.9, 1.1)  # from a state that nobody can read
            loss = error(b, model(a, training=True))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )

    step = wrap(step)
    for a, b in tf.data.Dataset.from_tensor_slices(DATA[what]).batch(8):
        step(a, b)


MODES = {
    "fit": lambda what: fit(what, jit_compile=False),
    "compiled": lambda what: fit(what, jit_compile=True),
    "function": lambda what: loop(what, tf.function),
    "eager": lambda what: loop(what, lambda step: step),
}
keras.utils.set_random_seed(7)
NAMES = []
for name in NAMES:
    mode, what = name.split("-")
    MODES[mode](what)
