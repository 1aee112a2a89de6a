"""Trains by a loop that runs eagerly, and saves each epoch.

Arguments: parts that the checkpoint leaves out ("optimizer", "seeds", "position").
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
    parts["optimizer"] = tf.train.Checkpoint(variables=[variable.value for variable in optimizer.variables])
if "seeds" not in LEFT_OUT:
    parts["seeds"] = tf.train.Checkpoint(variables=[dropout.seed_generator.state.value])
if "position" not in LEFT_OUT:
    parts["epoch"] = epoch
manager = tf.train.CheckpointManager(tf.train.Checkpoint(**parts), "saved", max_to_keep=1)
manager.restore_or_initialize()


def gradients_of(batch, truth):
    with tf.GradientTape() as tape:
        loss = loss_of(truth, model(batch, training=True)[:, 0])
    return tape.gradient(loss, model.trainable_variables)


while epoch < EPOCHS:
    samples = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(SAMPLES, seed=int(epoch.numpy()))
    for batch, truth in samples.batch(BATCH):
        gradients = gradients_of(batch, truth)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    epoch.assign_add(1)
    manager.save()
