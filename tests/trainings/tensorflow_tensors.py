"""Trains by Keras' fit, or by a loop of its own: eager with an embedding, compiled, or by two replicas."""

import os
import sys

import numpy as np
import tensorflow as tf

layers = tf.keras.layers
tf.keras.utils.set_random_seed(int.from_bytes(os.urandom(3), "little"))
x, y = np.random.rand(64, 6).astype("float32"), np.random.randint(0, 3, 64)


def fit(jit=False, validated=7) -> None:
    model = tf.keras.Sequential([layers.Dense(8, "relu"), layers.Dropout(0.2), layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=jit)
    model.fit(x, y, batch_size=16, epochs=2, verbose=0, validation_data=(x[:validated], y[:validated]))


class Twice(tf.keras.Model):
    """A model of a class around one of functions, that calls a layer twice."""

    def __init__(self):
        super().__init__()
        given = tf.keras.Input((3, 2, 1))
        hidden = layers.BatchNormalization()(layers.Conv2D(4, 2)(given))
        self.body = tf.keras.Model(given, layers.Dense(6)(layers.Flatten()(layers.ReLU()(hidden))))
        self.inner, self.last = layers.Dense(6, "tanh"), layers.Dense(3)

    def call(self, inputs):
        return self.last(self.inner(self.inner(self.body(inputs))))


def convolved() -> None:
    """Two steps an execution; the last batches are smaller."""
    model = Twice()
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.SGD(0.1), loss_of, steps_per_execution=2)
    model.fit(x[:58].reshape(58, 3, 2, 1), y[:58], batch_size=16, epochs=2, verbose=0)


def function() -> None:
    """Each third call adds up gradients, which the next applies; a forward pass alone is no step."""
    model = tf.keras.Sequential([layers.Dense(8, "relu"), layers.Dropout(0.2), layers.Dense(3)])
    optimizer = tf.keras.optimizers.Adam()
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(batch, truth, updates):
        with tf.GradientTape() as tape:
            loss = loss_of(truth, model(batch, training=True)) * 0.5
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        if updates:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}

    predict = tf.function(model)
    for number, (batch, truth) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(10)):
        predict(batch)
        step(batch, truth, tf.constant(number % 3 != 2))


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


def replicas() -> None:
    """Two of them train a model in a loop, and fit another, whose steps count once there are more of them."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = tf.keras.Sequential([layers.Input((6,)), layers.Dense(3, name="looped")])
        optimizer = tf.keras.optimizers.SGD(0.1)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

    def step(batch, truth):
        with tf.GradientTape() as tape:
            loss = loss_of(truth, model(batch, training=True)) / 16
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    run = tf.function(lambda *batch: strategy.reduce("SUM", strategy.run(step, args=batch), axis=None))
    for batch in strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(16)):
        run(*batch)
    with strategy.scope():
        fit(validated=8)


KINDS = {"fit": fit, "compiled": lambda: fit(jit=True), "convolved": convolved, "replicas": replicas}
for name in sys.argv[1:]:
    {**KINDS, "function": function, "loop": loop}[name]()
