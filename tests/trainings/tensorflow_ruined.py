"""Trainings whose learning rate becomes too large for one step; a test puts in TRAININGS those that a process makes."""

import json

import keras
import numpy as np
import tensorflow as tf

BAD, RATE = 3, 1e-3
random = np.random.default_rng(0)
x = random.standard_normal((64, 4)).astype("float32")
y = 100 * random.standard_normal((64, 1)).astype("float32")


def parts():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
    return model, keras.optimizers.SGD(RATE, momentum=0.9)


def tell(name, model, optimizer):
    finite = all(np.isfinite(weight).all() for weight in [*model.get_weights(), *map(np.asarray, optimizer.variables)])
    print(json.dumps({"name": name, "finite": bool(finite), "steps": int(optimizer.iterations)}), flush=True)


def fit(name, **options):
    model, optimizer = parts()

    class LargeStep(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.learning_rate = 1e38 if batch == BAD else RATE

    model.compile(optimizer, "mse", **options)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[LargeStep()])
    tell(name, model, optimizer)


def loop(name, wrap):
    model, optimizer = parts()

    @wrap
    def step(inputs, targets):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs, training=True) - targets) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for number, (inputs, targets) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
        optimizer.learning_rate.assign(1e38 if number == BAD else RATE)
        step(inputs, targets)
    tell(name, model, optimizer)


def large(name):
    """More than is held at each step: seen in the step behind, and said so."""
    weights, optimizer = tf.Variable(tf.ones([600, 600])), keras.optimizers.SGD(RATE)

    @tf.function
    def step(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((inputs @ weights) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])

    for number in range(BAD + 2):
        optimizer.learning_rate.assign(1e38 if number == BAD else RATE)
        step(tf.ones([2, 600]))
    print(json.dumps({"name": name}), flush=True)


TRAININGS = []
for training in TRAININGS:
    training()
