"""Weights far too large in a loop compiled by tf.function: the units of the hidden layer are at the ends of tanh."""

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

keras.utils.set_random_seed(6)
images, labels = load_digits(return_X_y=True)
images = ((images - images.mean()) / images.std()).astype("float32")
wide = keras.initializers.RandomNormal(stddev=5.0)
model = keras.Sequential([keras.layers.Dense(64, "tanh", kernel_initializer=wide), keras.layers.Dense(10)])
optimizer = keras.optimizers.SGD(0.05)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def step(batch, truth):
    with tf.GradientTape() as tape:
        loss = loss_of(truth, model(batch, training=True))
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


for batch, truth in tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(2000, 7).batch(64).take(30):
    step(batch, truth)
