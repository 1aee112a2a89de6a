"""Trains on data sets of tf.data, by Keras' fit and by a loop, and writes down what each step had. Argument: where to.

The model itself keeps its batches: a layer assigns the first number of each sample to a variable.
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

SIZE, BATCH = 30, 8
x = np.arange(SIZE, dtype="float32")[:, None] + np.zeros((SIZE, 3), "float32")
samples = tf.data.Dataset.from_tensor_slices((x, np.zeros(SIZE, "float32")))
batches = samples.shuffle(SIZE).batch(BATCH).prefetch(2)
some = samples.shuffle(SIZE).filter(lambda inputs, _: inputs[0] < 20).batch(BATCH)  # whose number is not known
seen = []


class Remembering(keras.Model):
    """Keeps the first numbers of what it is called with in a training."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.kept = tf.Variable(tf.zeros([BATCH], tf.float32), trainable=False, shape=tf.TensorShape([None]))

    def call(self, inputs, training=False):
        if training:
            self.kept.assign(inputs[:, 0])
        return self.dense(inputs)


class Writer(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        seen[-1].append([int(number) for number in self.model.kept.numpy()])


def fit(data, **options):
    seen.append([])
    model = Remembering()
    model.compile(keras.optimizers.SGD(1e-6), "mse", run_eagerly=options.pop("run_eagerly", False), jit_compile=False)
    model.fit(data, verbose=0, callbacks=[Writer()], **options)
    print(model.dense.kernel.numpy().tobytes().hex())


def loop():
    seen.append([])
    weights, optimizer = tf.Variable(tf.zeros([3])), keras.optimizers.SGD(1e-6)
    named = samples.take(9).shuffle(9).batch(1).map(lambda inputs, _: (inputs, tf.strings.as_string(inputs[:, 0])))
    for _ in range(2):
        for inputs, names in named:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.linalg.matvec(inputs, weights) - 1.0))
            optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
            seen[-1].append([int(float(name)) for name in names.numpy()])
    print(weights.numpy().tobytes().hex())


fit(samples.take(9).shuffle(9).batch(1), epochs=3)  # each batch comes again in another place
fit(batches, epochs=2, validation_data=batches)
fit(some, epochs=2)
fit(batches, epochs=3, steps_per_epoch=3)
fit(batches, epochs=1, run_eagerly=True)
loop()
with open(sys.argv[1], "w") as file:
    json.dump(seen, file)
