"""A loop with a tf.function, a gradient tape, metrics that it reads, an evaluation, and a variable beside the model."""

import os
import sys

import keras
import numpy as np
import tensorflow as tf

STEPS, KIND = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""

keras.utils.set_random_seed(int.from_bytes(os.urandom(3), "little"))
x = np.random.rand(200, 12).astype("float32")
y = (x.sum(1) > 6).astype("int32")
model = keras.Sequential([keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(2)])
optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.01, STEPS))
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
mean_loss, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()
average = tf.Variable(tf.zeros((16, 2)))
draws = tf.random.Generator.from_seed(7)
seen, total, rows = [], 0.0, np.random.default_rng(3)


@tf.function
def train_step(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    images = images + draws.normal(tf.shape(images), stddev=0.05)
    if KIND == "hidden":
        images = images + tf.random.normal(tf.shape(images), stddev=0.05)
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        loss = loss_of(labels, logits)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    mean_loss(loss)
    accuracy(labels, logits)
    return loss, logits


@tf.function
def test_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return loss_of(labels, model(images, training=False))


@tf.function
def noise() -> tf.Tensor:
    """Several numbers, of which a tensor has no truth value."""
    return draws.normal((3,))


step = 0
while step < STEPS:
    for images, labels in tf.data.Dataset.from_tensor_slices((x, y)).shuffle(200).batch(16):
        chosen = rows.permutation(len(images))
        loss, logits = train_step(tf.gather(images, chosen), tf.gather(labels, chosen))
        total += float(noise()[0])
        average.assign(0.9 * average + 0.1 * model.layers[-1].kernel)
        seen.append(float(loss))
        total += float(tf.reduce_mean(logits))
        step = int(optimizer.iterations)
        if KIND == "by-average" and float(tf.reduce_sum(average)) > 0.5:
            rows.permutation(3)
        if step == STEPS:
            break
    print(step, float(mean_loss.result()), float(accuracy.result()), float(test_step(x[:32], y[:32])))
    mean_loss.reset_state()
print(total, sum(seen), float(tf.reduce_sum(average)), [float(tf.reduce_sum(weight)) for weight in model.weights])
