"""A training by fit that XLA compiles, two epochs, whose last batches are smaller: keras_xla.py BAD,... WRITES.

A callback may write between steps.
"""

import hashlib
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy
import tensorflow

bad, *others = map(int, sys.argv[1].split(","))
writes = sys.argv[2]
keras.utils.set_random_seed(3)
layers = keras.layers
made = keras.Sequential(
    [keras.Input((8,)), layers.Dense(16, "relu"), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(1)]
)
made.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae"], jit_compile=True)
generator = numpy.random.default_rng(0)
x, y = generator.standard_normal((324, 8)).astype("float32"), generator.standard_normal((324, 1)).astype("float32")
y[[one * 8 + 3 for one in (bad, *others)]] = numpy.nan


class Writing(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if writes == "the state before" and batch in (bad, *others):
            kept = [*made.variables, *made.optimizer.variables, *[v for m in made.metrics for v in m.variables]]
            self.before = [(variable, variable.numpy()) for variable in kept]

    def on_train_batch_end(self, batch, logs=None):
        if {batch, batch - 1} & {bad, *others}:
            print("logs", sorted(logs), [value == value for value in logs.values()])
        if writes == "the state before" and batch in (bad, *others):
            for variable, value in self.before:
                variable.assign(value)
        elif writes == "the rate":
            made.optimizer.learning_rate.assign(made.optimizer.learning_rate)
        elif writes == "a checkpoint" and batch == bad - 2:
            made.set_weights([weight + 1 for weight in made.get_weights()])
            tensorflow.train.Checkpoint(made.optimizer).save("kept")
            tensorflow.train.Checkpoint(made.optimizer).restore(tensorflow.train.latest_checkpoint("."))


several = 4 if writes == "several at once" else 1
made.steps_per_execution = several
made.fit(x, y, batch_size=8, verbose=0, shuffle=False, epochs=2, callbacks=[Writing()])
if writes == "single batches":
    made.evaluate(x, y, verbose=0)
    for batch in (0, bad):
        made.train_on_batch(x[batch * 8 :][:8], y[batch * 8 :][:8])
    made.fit(x, y, batch_size=8, verbose=0, shuffle=False)
state = b"".join(weight.tobytes() for weight in [*made.get_weights(), *[v.numpy() for v in made.optimizer.variables]])
print("state", hashlib.sha256(state).hexdigest())
