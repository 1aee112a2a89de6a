"""A layer with gradients that the optimizer is never given, or one that is frozen, in loops of three kinds."""

import sys

import numpy as np
import tensorflow as tf

kind, sickness = sys.argv[1:]
layers = tf.keras.layers
tf.keras.utils.set_random_seed(3)
x = np.random.randn(320, 12).astype("float32")
y = (x[:, :3].sum(1) > 0).astype(int)
body = tf.keras.Sequential([layers.Dense(16, "relu"), layers.Dense(16, "relu")])
body.trainable = sickness == "omitted"
head = layers.Dense(2)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam(0.01)


class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.body, self.head = body, head

    def call(self, inputs):
        return self.head(self.body(inputs))

    def train_step(self, data):
        return {"loss": step(*data)}


net = Net()


def step(batch, truth):
    with tf.GradientTape() as tape:
        loss = loss_of(truth, net(batch, training=True))
    variables = head.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return loss


if kind == "fit":
    net.compile(optimizer)
    net.fit(x, y, batch_size=16, verbose=0)
else:
    taken = tf.function(step) if kind == "function" else step
    for rows in np.split(np.random.permutation(320), 20):
        taken(x[rows], y[rows])
