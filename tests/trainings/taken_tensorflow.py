"""Trains with TensorFlow or Keras in many ways, of which any step's snapshot can be taken: KIND [bad]."""

import os
import sys

import keras
import numpy as np
import tensorflow as tf

KIND, BAD = sys.argv[1], sys.argv[2:] == ["bad"]

if KIND == "mirrored":
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
keras.utils.set_random_seed(int.from_bytes(os.urandom(3), "little"))
layers = keras.layers
x = np.random.rand(96, 6).astype("float32")
y = (x.sum(1) > 3).astype("float32")[:, None]
strategy = tf.distribute.get_strategy()
if KIND == "mirrored":
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def network() -> keras.Model:
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, "tanh"), layers.BatchNormalization(), layers.Dropout(0.2), layers.Dense(1)]
    )


with strategy.scope():
    model, other = network(), network()
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    if KIND == "scaled":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**20)
    model.compile(
        optimizer,
        "mse",
        run_eagerly=KIND == "eager-fit",
        jit_compile=KIND == "xla-fit",
        steps_per_execution=3 if "several" in KIND else 1,
    )
second = keras.optimizers.SGD(0.05)
if "accumulated" in KIND:
    optimizer.build(model.trainable_variables)
if BAD:  # in the first of the two batches of step 5
    y[8 * 2 * 5 + 3] = np.nan
sums = [tf.Variable(tf.zeros_like(weight)) for weight in model.trainable_variables]
noise = tf.random.Generator.from_seed(4)


def step(rows: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    rows = rows + noise.normal(tf.shape(rows), stddev=0.01)
    if KIND == "drawn":
        rows = rows + tf.random.normal(tf.shape(rows), stddev=0.01)
    with tf.GradientTape(persistent=KIND == "pair") as tape:
        value = tf.reduce_mean((model(rows, training=True) - labels) ** 2)
        if KIND == "not-finite":
            value += tf.reduce_mean(tf.math.log(tf.cast(9 - optimizer.iterations, tf.float32)) * model(rows))
        if KIND == "pair":
            value_of_other = tf.reduce_mean((other(rows, training=True) - model(rows)) ** 2)
    gradients = tape.gradient(value, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    if KIND == "pair":
        gradients = tape.gradient(value_of_other, other.trainable_variables)
        second.apply_gradients(zip(gradients, other.trainable_variables, strict=True))
    return value


@tf.function
def accumulate(rows: tf.Tensor, labels: tf.Tensor, applies: bool) -> tf.Tensor:
    with tf.GradientTape() as tape:
        value = tf.reduce_mean((model(rows, training=True) - labels) ** 2)
    for total, gradient in zip(sums, tape.gradient(value, model.trainable_variables), strict=True):
        total.assign_add(gradient)
    if applies:
        optimizer.apply_gradients(zip([total + 0 for total in sums], model.trainable_variables, strict=True))
        for total in sums:
            total.assign(tf.zeros_like(total))
    return value


def differentiate(rows: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        value = tf.reduce_mean((model(rows, training=True) - labels) ** 2)
    return tape.gradient(value, model.trainable_variables)


@tf.function
def add_up(rows: tf.Tensor, labels: tf.Tensor) -> None:
    for total, gradient in zip(sums, differentiate(rows, labels), strict=True):
        total.assign_add(gradient)


@tf.function
def apply_sums() -> None:
    optimizer.apply_gradients(zip([total + 0 for total in sums], model.trainable_variables, strict=True))
    for total in sums:
        total.assign(tf.zeros_like(total))


if KIND == "ruined":  # by its learning rate, from finite gradients
    rates = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: optimizer.learning_rate.assign(float("inf") if batch == 9 else 0.05)
    )
    model.fit(x, y, batch_size=8, verbose=0, shuffle=False, callbacks=[rates])
elif "fit" in KIND or "several" in KIND or KIND in ("scaled", "mirrored"):
    if "several" in KIND:
        x, y = np.tile(x, (4, 1)), np.tile(y, (4, 1))
    if KIND == "several-bad":
        y[8 * 28] = np.nan  # of the second of three batches of call 9
    model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle="several" not in KIND)
elif KIND in ("fetched", "fetched-twice", "ragged"):
    rows = tf.RaggedTensor.from_tensor(x) if KIND == "ragged" else x
    batches = iter(tf.data.Dataset.from_tensor_slices((rows, y)).repeat().batch(8))

    @tf.function
    def fetching(iterator: tf.data.Iterator) -> tf.Tensor:
        rows, labels = next(iterator)
        rows = rows.to_tensor(shape=(None, 6)) if KIND == "ragged" else rows
        return step(*next(iterator)) if KIND == "fetched-twice" else step(rows, labels)

    for _ in range(24):
        fetching(batches)
elif KIND == "accumulated-eagerly":
    totals = [0.0] * len(sums)
    for number, batch in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).repeat(2).batch(8)):
        totals = [total + gradient for total, gradient in zip(totals, differentiate(*batch), strict=True)]
        if number % 2 == 1:
            optimizer.apply_gradients(zip(totals, model.trainable_variables, strict=True))
            totals = [0.0] * len(sums)
else:
    run = step if KIND == "eager" else tf.function(step, jit_compile=KIND == "xla")
    for number in range(24):
        order = np.arange(8 * number, 8 * number + 8) % 96 if BAD else np.random.permutation(96)[:8]
        batch = tf.constant(x[order]), tf.constant(y[order])
        if KIND == "accumulated":
            accumulate(*batch, number % 2 == 1)
        elif KIND == "accumulated-apart":
            add_up(*batch)
            if number % 2 == 1:
                apply_sums()
        else:
            run(*batch)
print([float(tf.reduce_sum(weight)) for weight in model.weights])
