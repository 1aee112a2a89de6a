"""Trains by a loop that updates eagerly, and saves each epoch.

Arguments: parts that the checkpoint leaves out ("optimizer", "schedule", "seeds", "position"), and "gradients" or
"forward" where a function computes these. "scale": a tensor that the script lowers scales the gradients.
"""

import os
import sys

import tensorflow as tf

LEFT_OUT = frozenset(sys.argv[1:])
EPOCHS, SAMPLES, BATCH = 4, 48, 8

tf.keras.utils.set_random_seed(int.from_bytes(os.urandom(4), "little"))
x = tf.random.stateless_normal((SAMPLES, 6), (1, 2))
y = tf.reduce_sum(x, 1)
layers = tf.keras.layers
dropout = layers.Dropout(0.25)
model = tf.keras.Sequential(
    [tf.keras.Input((6,)), layers.Dense(8), layers.BatchNormalization(), dropout, layers.Dense(1)]
)
optimizer = tf.keras.optimizers.Adam(0.01)
loss_of = tf.keras.losses.MeanSquaredError()
optimizer.build(model.trainable_variables)
epoch = tf.Variable(0, trainable=False, dtype=tf.int64)

parts = {"weights": tf.train.Checkpoint(variables=[variable.value for variable in model.weights])}
if "optimizer" not in LEFT_OUT:
    state = [variable.value for variable in optimizer.variables if variable is not optimizer.learning_rate]
    parts["optimizer"] = tf.train.Checkpoint(variables=state)
if "schedule" not in LEFT_OUT:
    parts["schedule"] = tf.train.Checkpoint(variables=[optimizer.learning_rate.value])
if "seeds" not in LEFT_OUT:
    parts["seeds"] = tf.train.Checkpoint(variables=[dropout.seed_generator.state.value])
if "position" not in LEFT_OUT:
    parts["epoch"] = epoch
manager = tf.train.CheckpointManager(tf.train.Checkpoint(**parts), "saved", max_to_keep=1)
manager.restore_or_initialize()


def losses(batch, truth):
    return loss_of(truth, model(batch, training=True)[:, 0])


def gradients_of(batch, truth):
    with tf.GradientTape() as tape:
        loss = losses(batch, truth)
    return tape.gradient(loss, model.trainable_variables)


if "forward" in LEFT_OUT:
    losses = tf.function(losses)
if "gradients" in LEFT_OUT:
    gradients_of = tf.function(gradients_of)
scale = tf.constant(1.0)
while epoch < EPOCHS:
    samples = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(SAMPLES, seed=int(epoch.numpy()))
    for batch, truth in samples.batch(BATCH):
        gradients = gradients_of(batch, truth)
        if "scale" in LEFT_OUT:
            gradients = [scale * gradient for gradient in gradients]
            scale = 0.9 * scale
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    optimizer.learning_rate.assign(optimizer.learning_rate * 0.9)
    epoch.assign_add(1)
    manager.save()
